"""A partition that does not answer is asked for by itself: what others answer is known at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from gateway.alerts.owner import WAIT_S, AskedPartitions
from gateway.alerts.sharing import RETRY_S, Claims, ClaimState
from tests.waiting import wait_until

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

    claims, asking = Claims(lambda: 0.0), AskedPartitions(subscribe)
    claims.add(NAMES, 0.0)
    began_s, now_s = time.monotonic(), 0.0
    waits_s = list[float]()
    taken = list[str]()
    while len(taken) < len(NAMES) - 1:
        now_s += RETRY_S / 4
        assert now_s < 60
        names = claims.due(now_s)
        claims.on_asked(names)
        for name, answer in asking.answers(names):
            waits_s.append(time.monotonic() - began_s)
            assert name == answer
            claims.on_held(name, now_s)
            taken.append(name)
    assert "p0" not in taken
    assert waits_s[0] < WAIT_S, "an answer is known as soon as it is there"
    assert time.monotonic() - began_s < 10 * WAIT_S, "one that does not answer is waited for once"
    assert claims.of_state(ClaimState.UNKNOWN) == ["p0"]
    answers.set()
    late = list[tuple[str, str]]()

    def has_answered() -> bool:
        late.extend(asking.answers([]))
        return bool(late)

    wait_until(has_answered)
    assert late == [("p0", "p0")]
    assert sorted(asked) == sorted(NAMES)
    asking.close()
