"""What a run takes from the topics is said to be all of it only where it is."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

from cloud_jobs.lake.tables import Lake
from cloud_jobs.verdicts.collecting import TopicAlert
from cloud_jobs.verdicts.collection import collect
from cloud_jobs.verdicts.subscription import AlertSubscription, ReceivedAlerts

MALFORMED = TopicAlert("alerts-eu", None, b"{")


class Backlog:
    """Topics that have so many parts of messages, the last of which is all that is left."""

    def __init__(self, parts: Sequence[Sequence[TopicAlert]]) -> None:
        self._parts, self.acknowledged = [*parts], 0

    def receive(self, _max_messages: int, _until_s: float) -> ReceivedAlerts:
        part = self._parts.pop(0)
        return ReceivedAlerts([*part], not self._parts, {})

    def acknowledge(self) -> None:
        self.acknowledged += 1


def collected(tmp_path: Path, backlog: Backlog, **bounds: Any) -> dict[str, Any]:
    return collect(Lake(tmp_path), cast("AlertSubscription", backlog), timedelta(days=30), **bounds)


def test_a_run_that_took_everything_has_finished(tmp_path: Path) -> None:
    backlog = Backlog([[MALFORMED], [MALFORMED]])
    assert collected(tmp_path, backlog) == {
        "alerts": 0,
        "repeated": 0,
        "refused": 2,
        "left_out": 0,
        "unfinished": 0,
    }
    assert backlog.acknowledged == 2


def test_a_run_that_ended_at_a_bound_has_not_finished(tmp_path: Path) -> None:
    assert collected(tmp_path, Backlog([[MALFORMED]] * 3), max_commits=2)["unfinished"] == 1
    assert collected(tmp_path, Backlog([[MALFORMED]] * 3), max_s=-1.0)["unfinished"] == 1
