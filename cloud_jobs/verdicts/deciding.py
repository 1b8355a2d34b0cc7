"""The verdict on one alert, and the alerts that wait for one. Pure.

An id is *announced* when a region raised an alert with it, or when the centre gave the verdict `late`. Each announced
id has exactly one verdict in force: it is withdrawn, or its event is in force. So once every announced id has its
verdict, announced = events in force + withdrawn, and these two share no id.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from cloud_jobs.lake.schemas import ALERTS, VERDICTS
from cloud_jobs.lake.transactions import counter_of
from geo.alerts.messages import ErrorReason, VerdictKind
from geo.spatial import DayEvent

# Unsettled alerts after a run, for the next run.

ASKED_ROWS: Final = pa.schema([ALERTS.field(name) for name in ("id", "tenant", "device", "day", "time")])
"""The columns by which the rows of an id are found."""
OPEN_ROWS: Final = pa.schema(
    [
        *ASKED_ROWS,
        *(ALERTS.field(name).with_nullable(True) for name in ("epoch", "seq", "seen_until", "commit_number")),
        pa.field("since", ALERTS.field("collected_at").type),
        VERDICTS.field("reason"),
        pa.field("looked_at", pa.int64(), nullable=False),
    ]
)
"""What is kept of an open alert; the rest is in the table. `reason`: why it was withdrawn; null: it has no verdict.

Without a verdict: `since`: when it came, by the centre's clock; `commit_number`: its commit in `alerts`. Withdrawn:
`looked_at`: the ingest commit of the last check (-1: none); `seen_until`: null if it was not looked up."""
NEVER: Final = -1


class TableCommit(NamedTuple):
    """The newest commit of a table, and the table's id; `number` None: it has no commit."""

    table_id: str
    number: int | None


@dataclass(frozen=True, slots=True)
class OpenAlerts:
    """The open alerts after a run, which read `alerts` up to a commit and left `verdicts` at a commit. `covered`: the
    ingest commit that the events cover (None: none).
    """

    verdicts: TableCommit
    alerts: TableCommit
    covered: int | None
    rows: pa.Table

    def is_of(self, verdicts: TableCommit, alerts: TableCommit) -> bool:
        """Whether the table `verdicts` is unchanged, and `alerts` has at most grown."""
        if self.verdicts != verdicts or self.alerts.table_id != alerts.table_id:
            return False
        # only the newest commit's identity is known
        return self.alerts == alerts or counter_of(self.alerts.number) < counter_of(alerts.number)

    @property
    def waiting(self) -> pa.Table:
        return self.rows.filter(pc.is_null(self.rows["reason"]))

    @property
    def unproven(self) -> pa.Table:
        """The alerts that were withdrawn while records were missing."""
        return self.rows.filter(pc.is_valid(self.rows["reason"]))


@dataclass(frozen=True, slots=True)
class AlertDecision:
    """`event`: the event in force at the centre, or None."""

    verdict: VerdictKind
    event: DayEvent | None = None
    reason: ErrorReason | None = None


class RecordState(StrEnum):
    """What the centre has of the records that prove an event: the one that it names, and all up to the newest one
    that the region used. Time proves nothing: while a backlog drains, records may take hours.
    """

    COMPLETE = "complete"
    """The events are computed with all of them, or with the device's word that it lost what is not there."""
    LOST = "lost"
    """So it is, and the one that the alert names is among those that the device lost."""
    COVERED = "covered"
    """The events are computed with the one that the alert names, and others are missing, or not known."""
    RECEIVED = "received"
    """The centre has that one, and the events are computed without it."""
    ABSENT = "absent"
    """The centre has not got it."""


@dataclass(frozen=True, slots=True)
class KnownOfAlert:
    """What is known about one id.

    `alert`: what a region said, or None. `event`: the event in force, or None. `record`: the records that prove it; it
    matters only without an event. `is_overdue`: the alert has waited as long as one may. `was_announced`: a verdict was
    given before, with the reason `before`.
    """

    alert: DayEvent | None
    event: DayEvent | None
    record: RecordState
    is_overdue: bool
    was_announced: bool
    before: ErrorReason | None = None


def decide(known: KnownOfAlert) -> AlertDecision | None:
    """The verdict on one id; None: not yet."""
    if known.alert is None:
        if known.event is not None:
            return AlertDecision(VerdictKind.LATE, known.event)
        # the verdict was `late`, and late records took the event back
        return _withdrawn(known) if known.was_announced else None
    if known.event is not None:
        if known.event == known.alert:
            return AlertDecision(VerdictKind.CONFIRMED, known.event)
        return AlertDecision(VerdictKind.CORRECTED, known.event, ErrorReason.INCORRECT_DATA)
    # an event that was in force and is not any more does not wait
    is_due = known.record in PROVEN or known.is_overdue or known.was_announced
    return _withdrawn(known) if is_due else None


def _withdrawn(known: KnownOfAlert) -> AlertDecision:
    reason = REASONS[known.record]
    # another missing record is no news
    if known.record not in PROVEN and known.before in _NOT_KNOWN:
        reason = known.before
    return AlertDecision(VerdictKind.WITHDRAWN, None, reason)


PROVEN: Final = frozenset({RecordState.COMPLETE, RecordState.LOST})
"""These states do not change with time."""

# the reason tells an operator where to look: in the region, or at the job
REASONS: Final = {
    RecordState.COMPLETE: ErrorReason.DID_NOT_OCCUR,
    RecordState.LOST: ErrorReason.NOT_RECEIVED,
    RecordState.COVERED: ErrorReason.INCOMPLETE,
    RecordState.RECEIVED: ErrorReason.NOT_COMPUTED,
    RecordState.ABSENT: ErrorReason.NOT_RECEIVED,
}
_NOT_KNOWN: Final = frozenset({ErrorReason.INCOMPLETE, ErrorReason.NOT_COMPUTED, ErrorReason.NOT_RECEIVED})
