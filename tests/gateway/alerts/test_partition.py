"""What a partition says of itself while its state is made, and after."""

from __future__ import annotations

import threading

from tests.gateway.alerts.fixes_as_they_come import NOON, LiveFix
from tests.gateway.alerts.scripted_partition import ScriptedTopic, messages_of, served

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
