"""What a partition says of itself while its state is made, and after."""

import threading
import time
from collections.abc import Iterator

import pytest

from gateway.alerts.owner import AskedPartitions
from gateway.alerts.sharing import START_S, Claims, Presence
from tests.gateway.alerts.fixes_as_they_come import NOON, LiveFix
from tests.gateway.alerts.scripted_partition import ScriptedMessage, ScriptedTopic, messages_of, served
from tests.waiting import wait_until
from waybill.pulsar import pulsar_positions as silence

FIXES = [LiveFix("bus-1", NOON + 5000 * at, at + 1, 0.0015, 0.0004 * at) for at in range(6)]


def test_while_its_state_is_made_a_partition_is_as_far_behind_as_the_first_batch_that_waits() -> None:
    topic = ScriptedTopic(messages_of([[one] for one in FIXES]))
    seen: list[float | None] = []
    create = topic.create_reader

    def observed(name: str, start: object, **more: object) -> object:
        seen.append(made.owned.lag_s(NOON / 1000 + 64))
        return create(name, start, **more)

    topic.create_reader = observed  # type: ignore[method-assign, assignment]
    made = served(topic, 4, run=False)
    assert made.owned.lag_s(NOON / 1000 + 64) is None, "nothing is known of it yet"
    made.run()
    assert seen == [60.0]
    assert made.owned.lag_s(NOON / 1000 + 64) == 0.0, "nothing is left"


def test_a_topic_of_alerts_that_does_not_answer_holds_up_no_other_partition() -> None:
    evaluating, asked, answers = threading.Lock(), threading.Event(), threading.Event()

    def open_topic() -> None:
        asked.set()
        answers.wait(20)

    parts = [[one] for one in FIXES]
    silent = served(ScriptedTopic(messages_of(parts)), 0, evaluating=evaluating, open_topic=open_topic, run=False)
    other = served(ScriptedTopic(messages_of(parts)), 0, evaluating=evaluating, run=False)
    threads = [threading.Thread(target=one.run) for one in (silent, other)]
    try:
        threads[0].start()
        assert asked.wait(10), "it has an alert to publish"
        threads[1].start()
        threads[1].join(10)
        assert not threads[1].is_alive()
        assert other.alerts
        assert not silent.alerts
    finally:
        answers.set()
        for thread in threads:
            thread.join(10)
    assert silent.said == other.said


@pytest.mark.parametrize(("last_entry", "lag_s", "reason"), [(5, 0.0, ""), (9, None, silence.WITHHELD)])
def test_a_partition_whose_end_does_not_come_is_not_up_to_date_and_is_given_up(
    monkeypatch: pytest.MonkeyPatch, last_entry: int, lag_s: float | None, reason: str
) -> None:
    monkeypatch.setattr(silence, "ASK_S", 0.0)
    made = served(ScriptedTopic(messages_of([[one] for one in FIXES])), 4, run=False)
    monkeypatch.setattr(made.consumer, "get_last_message_id", lambda: ScriptedMessage(last_entry, -1, b"", 0))
    silences = iter(range(5))
    stop = made.owned.stop
    made.consumer.on_end = lambda: stop() if next(silences) == 4 else None
    made.owned.run(5.0)
    assert (made.owned.lag_s(NOON / 1000 + 64), made.owned.lost_reason) == (lag_s, reason)


NAMES = tuple(f"p{number}" for number in range(24))


@pytest.fixture
def answers() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_while_one_does_not_answer_all_others_are_taken_and_it_is_asked_for_once(answers: threading.Event) -> None:
    asked: list[str] = []

    def subscribe(name: str) -> str:
        asked.append(name)
        return name if name != "p0" or answers.wait(30) else "never"

    claims, asking = Claims(Presence("mine", ["acme"]), lambda: 0.0, -START_S), AskedPartitions(subscribe)
    claims.add(NAMES)
    began_s, taken = time.monotonic(), set[str]()

    def take() -> bool:
        now_s = time.monotonic() - began_s
        for name, answer in asking.answers(claims.due(taken, [], now_s)):
            assert name == answer
            claims.on_answer(name, now_s, is_taken=False)
            taken.add(name)
        return len(taken) == len(NAMES) - 1

    wait_until(take)
    assert claims.unowned(taken, time.monotonic() - began_s) == ["p0"]
    assert len(asking) == 1
    answers.set()
    late = list[tuple[str, str]]()

    def has_answered() -> bool:
        late.extend(asking.answers([]))
        return bool(late)

    wait_until(has_answered)
    assert late == [("p0", "p0")]
    assert sorted(asked) == sorted(NAMES)
    asking.close()
