"""A partition that gives nothing: whether nothing is left, or what there is does not come."""

from __future__ import annotations

import pytest

from gateway.alerts import silence
from gateway.alerts.rewinding import EntryPosition
from gateway.alerts.silence import ASK_S, Silence
from tests.gateway.alerts.fixes_as_they_come import NOON, LiveFix
from tests.gateway.alerts.scripted_partition import ScriptedMessage, ScriptedTopic, messages_of, served

FIXES = [LiveFix("bus-1", NOON + 5000 * at, at + 1, 0.0015, 0.0004 * at) for at in range(6)]


def test_what_the_cluster_has_and_does_not_give_is_withheld_once_it_was_asked_twice() -> None:
    seen = Silence()
    assert not seen.is_to_ask(1e9), "nothing was read yet: there is nothing to compare with"
    seen.on_read(EntryPosition(7, 3), 100.0)
    assert not seen.is_to_ask(100.0 + ASK_S / 2)
    assert seen.is_to_ask(100.0 + ASK_S)
    seen.on_end(EntryPosition(7, 4), 110.0)
    once = seen.is_withheld
    assert not seen.is_to_ask(110.0 + ASK_S / 2)
    seen.on_end(EntryPosition(7, 4), 120.0)
    twice = seen.is_withheld
    seen.on_read(EntryPosition(7, 4), 121.0)
    assert (once, twice, seen.is_withheld) == (False, True, False), "once it may be on its way"


def test_an_end_that_was_read_is_an_end() -> None:
    seen = Silence()
    seen.on_read(EntryPosition(7, 3), 0.0)
    for at in range(1, 5):
        seen.on_end(EntryPosition(7, 3), at * ASK_S)
        assert not seen.is_withheld
    seen.on_end(EntryPosition(7, 4), 5 * ASK_S)
    seen.on_end(EntryPosition(7, 3), 6 * ASK_S)
    seen.on_end(EntryPosition(7, 4), 7 * ASK_S)
    assert not seen.is_withheld, "these were not one after the other"


@pytest.mark.parametrize(("last_entry", "lag_s"), [(5, 0.0), (9, None)])
def test_a_connected_subscription_that_gives_nothing_of_what_there_is_is_not_up_to_date(
    monkeypatch: pytest.MonkeyPatch, last_entry: int, lag_s: float | None
) -> None:
    monkeypatch.setattr(silence, "ASK_S", 0.0)
    made = served(ScriptedTopic(messages_of([[one] for one in FIXES])), 4, run=False)
    monkeypatch.setattr(made.consumer, "get_last_message_id", lambda: ScriptedMessage(last_entry, -1, b"", 0))
    silences = iter(range(5))
    stop = made.owned.stop
    made.consumer.on_end = lambda: stop() if next(silences) == 4 else None
    made.run()
    assert made.owned.lag_s(NOON / 1000 + 64) == lag_s
