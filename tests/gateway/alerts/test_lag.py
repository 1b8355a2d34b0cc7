"""A process that is late says so, names the partition, and is not healthy; what it does not know is unknown."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

import pytest

from gateway.alerts.service import AlertService
from gateway.alerts.status import AlertsStatus, lag_of
from gateway.reference_follower import ReferenceFacts, ReferenceFollower
from tests.gateway.alerts.fixes_as_they_come import LiveFix
from tests.gateway.alerts.scripted_partition import NAME, RULES, ScriptedTopic, ServedPartition, messages_of, served
from tests.gateway.alerts.test_alert_checks import settings


@pytest.mark.parametrize(
    ("each", "said_s", "problem", "in_doubt"),
    [
        ((), None, False, False),
        ((0.0, 2.5), 2.5, False, False),
        ((31.0, 0.0), 31.0, True, False),
        ((2.5, None), None, False, True),
        ((31.0, None), 31.0, True, True),
        ((None,), None, False, True),
    ],
)
def test_of_a_process_the_largest_that_is_known_counts_and_what_is_not_known_is_in_doubt(
    each: Iterable[float | None], said_s: float | None, problem: bool, in_doubt: bool
) -> None:
    lag = lag_of((f"p{number}", one) for number, one in enumerate(each))
    assert (lag.said_s(30), bool(lag.problem(30)), bool(lag.doubt)) == (said_s, problem, in_doubt)


def said_of(owned: ServedPartition, monkeypatch: pytest.MonkeyPatch) -> AlertsStatus:
    """What a process says that has this partition, and of which all else is well."""
    service = AlertService(settings())
    service._fences._made = RULES, None  # type: ignore[assignment]
    monkeypatch.setattr(ReferenceFollower, "reference_facts", ReferenceFacts(0, (), {}, "", None, ""))
    service._owner.problem = ""
    service._owner._held[NAME] = owned.owned, threading.current_thread()
    service._update(time.monotonic())
    return service._status


def partition(published_s_ago: float) -> ServedPartition:
    """One that has read a batch of then, and has not found that there is no other."""
    now_ms = round(time.time() * 1000)
    fix = LiveFix("bus-1", now_ms, 1, 0.0015, 0.0004)
    made = served(ScriptedTopic(messages_of([[fix]], now_ms - round(published_s_ago * 1000))), 0)
    made.owned.newest_ms = now_ms - round(published_s_ago * 1000)
    return made


def test_a_process_that_is_late_is_not_healthy_and_says_which_partition_and_how_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    status = said_of(partition(published_s_ago=600), monkeypatch)
    assert status.healthy is False
    assert status.last_error.startswith(f"{NAME}: batches are read 600 s after they were published")
    assert status.lag_s is not None
    assert status.lag_s >= 600
    status = said_of(partition(published_s_ago=1), monkeypatch)
    assert (status.healthy, status.last_error) == (True, "")


def test_how_late_it_is_is_unknown_while_nothing_can_come(monkeypatch: pytest.MonkeyPatch) -> None:
    made = partition(published_s_ago=1)
    made.owned.newest_ms = None
    assert made.owned.lag_s(time.time()) == 0.0
    made.consumer.is_connected = lambda: False  # type: ignore[method-assign]
    assert made.owned.lag_s(time.time()) is None
    status = said_of(made, monkeypatch)
    assert (status.healthy, status.lag_s) == (None, None)
    assert "not known" in status.last_error
