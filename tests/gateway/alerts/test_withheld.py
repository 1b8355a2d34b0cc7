"""An alert process whose subscription is connected and gets nothing of what there is."""

from __future__ import annotations

import pytest

from tests.gateway.alerts.fixes_as_they_come import NOON, LiveFix
from tests.gateway.alerts.scripted_partition import ScriptedMessage, ScriptedTopic, messages_of, served
from waybill.pulsar import pulsar_positions as silence

FIXES = [LiveFix("bus-1", NOON + 5000 * at, at + 1, 0.0015, 0.0004 * at) for at in range(6)]


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
