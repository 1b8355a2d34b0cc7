"""What the centre has of the records that prove an alert. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from cloud_jobs.lake.coverage import Coverage, DeviceStream
from cloud_jobs.verdicts.deciding import RecordState
from cloud_jobs.verdicts.lookups import Row


class AlertCoverage(NamedTuple):
    """With what the events are computed, and what the centre has now, which is asked for where it is to be said."""

    covered: Mapping[DeviceStream, Coverage]
    received: Mapping[DeviceStream, Coverage]


def record_state(row: Row, coverage: AlertCoverage) -> RecordState:
    """What the centre has of the records that prove an alert, or of the one of a verdict of which there is no alert."""
    device, seq = (row["tenant"], row["device"]), row["seq"]
    own = coverage.covered.get(DeviceStream(*device, row["epoch"]), Coverage())
    # an id names its record: without that there is no such event, whatever else comes
    if seq in own.declared_lost:
        return RecordState.LOST
    numbers = seen_until(row)
    newest = [*zip(numbers[::2], numbers[1::2], strict=True)]
    if newest and all(
        coverage.covered.get(DeviceStream(*device, epoch), Coverage()).covered_through >= until
        for epoch, until in (*newest, (row["epoch"], seq))
    ):
        return RecordState.COMPLETE
    if seq in own.received:
        return RecordState.COVERED
    now = coverage.received.get(DeviceStream(*device, row["epoch"]), Coverage())
    return RecordState.RECEIVED if seq in now.received else RecordState.ABSENT


def seen_until(row: Row) -> tuple[int, ...]:
    """Epoch, seq, epoch, seq, ...: the newest records by which it was seen; none: that was not said."""
    # a late event was seen by nobody else
    return tuple(row["seen_until"] or ()) if "seen_until" in row else (row["epoch"], row["seq"])
