"""Alerts that were withdrawn although it is not known whether they are so: looked at again until it is.

Each look is at a few, whatever waits: those come first that were not looked at for longest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import date, timedelta
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from cloud_jobs.lake.coverage import Coverage, DeviceStream
from cloud_jobs.verdicts.deciding import PROVEN, REASONS
from cloud_jobs.verdicts.lookups import OpenedTable, Row
from cloud_jobs.verdicts.open_alerts import ASKED_ROWS, NEVER, OPEN_ROWS
from cloud_jobs.verdicts.record_states import AlertCoverage, record_state
from geo.alerts.verdict import ErrorReason, VerdictKind

KEPT: Final = timedelta(days=31)
"""Of alerts of what happened longer ago, records are not waited for any more: a look costs the same for ever."""
MAX_KEPT: Final = 100_000
"""Of more, those of the latest days."""
AT_ONCE: Final = 2_000
# some have a later verdict
_MAX_FOUND: Final = 2 * MAX_KEPT
_SAYS_WHAT_IS: Final = ErrorReason.DID_NOT_OCCUR.value

CoverageOf = Callable[[Collection[Row]], Mapping[DeviceStream, Coverage]]
"""With what the events of the devices of some rows are computed."""


class LookedAt(NamedTuple):
    """`due`: of these more is known (schema ASKED_ROWS); `kept`: of these not, and those that have to wait."""

    due: pa.Table
    kept: pa.Table


def is_unproven(verdict: str, reason: str | None) -> bool:
    """Whether a verdict says what is not known, instead of what is so."""
    return verdict == VerdictKind.WITHDRAWN and reason != _SAYS_WHAT_IS


def look_again(unproven: pa.Table, covered: int, coverage_of: CoverageOf) -> LookedAt:
    """Which of some alerts are to be decided again, as of a commit of the ingest."""
    is_old = pc.not_equal(unproven["looked_at"], covered)
    ordered = unproven.filter(is_old).sort_by("looked_at")
    now, later = ordered.slice(0, AT_ONCE), ordered.slice(AT_ONCE)
    rows = now.to_pylist()
    coverage = AlertCoverage(coverage_of(rows), {}) if rows else AlertCoverage({}, {})
    is_due = pa.array([_is_more_known(row, coverage) for row in rows], pa.bool_())
    same = now.filter(pc.invert(is_due))
    looked = pa.repeat(pa.scalar(covered, pa.int64()), same.num_rows)
    same = same.set_column(OPEN_ROWS.get_field_index("looked_at"), OPEN_ROWS.field("looked_at"), looked)
    kept = pa.concat_tables([unproven.filter(pc.invert(is_old)), same, later])
    return LookedAt(now.filter(is_due).select(ASKED_ROWS.names), kept)


def bounded(unproven: pa.Table, today: date) -> pa.Table:
    """What is kept of it, in an order that its content alone decides."""
    kept = unproven.filter(pc.greater_equal(unproven["day"], pa.scalar(today - KEPT)))
    newest = kept.sort_by([("day", "descending"), ("id", "ascending")]).slice(0, MAX_KEPT)
    return newest.sort_by([("looked_at", "ascending"), ("id", "ascending")])


def unproven_in(verdicts: OpenedTable, today: date) -> pa.Table:
    """Those of the table that are to be looked at, where no run left them."""
    columns = [*ASKED_ROWS.names, "epoch", "seq", "verdict", "reason", "revision"]
    found: dict[str, Row] = {}
    for part in verdicts.from_day(today - KEPT, columns):
        withdrawn = pc.equal(part["verdict"], VerdictKind.WITHDRAWN.value)
        unproven = pc.fill_null(pc.and_(withdrawn, pc.not_equal(part["reason"], _SAYS_WHAT_IS)), False)
        # the verdict in force may be one that came later
        for row in part.filter(pc.or_(unproven, pc.greater(part["revision"], 0))).to_pylist():
            if row["id"] not in found or found[row["id"]]["revision"] < row["revision"]:
                found[row["id"]] = row
        if len(found) > _MAX_FOUND:
            break
    rows = [
        {name: row.get(name) for name in OPEN_ROWS.names} | {"looked_at": NEVER}
        for row in found.values()
        if is_unproven(row["verdict"], row["reason"])
    ]
    return pa.Table.from_pylist(rows, schema=OPEN_ROWS)


def _is_more_known(row: Row, coverage: AlertCoverage) -> bool:
    state = record_state(row, coverage)
    # one that was found in the table alone does not say by which records it was seen
    return row["seen_until"] is None or (state in PROVEN and REASONS[state] != row["reason"])
