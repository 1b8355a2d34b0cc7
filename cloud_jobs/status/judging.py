"""Whether the centre is healthy: a sentence for each thing that is not, or that is not known. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from cloud_jobs.status.facts import CentreStatus, DerivedStatus, TableStatus, TopicLag
from cloud_jobs.status_settings import CentreLimits

MAX_SKEW_S: Final = 300.0
"""So far a clock may be from another one."""
MAX_UNREADABLE_PERCENT: Final = 1
"""Of a micro-batch's records: as the alert WaybillRecordsUnreadable, and payers who agreed on nothing else."""
_DECIDED_WITHIN_S: Final = 60.0
"""At its bound an alert is withdrawn by the next run of the verdicts, and that is published: so long it may take."""
_ALWAYS: Final = "usage"
"""Bills are made of it: it is waited for although it was never computed."""


def problems(status: CentreStatus, limits: CentreLimits) -> tuple[str, ...]:
    """What is wrong, none: healthy. What is unknown is wrong, too."""
    return (
        *(f"{name} cannot be read: {error}" for name, error in status.errors.items()),
        *_of_clock(status),
        *([status.token_problem] if status.token_problem else []),
        *(problem for lag in status.lag for problem in _of_lag(status, lag, limits.max_lag_s)),
        *_of_left_out(status, limits.max_lag_s),
        *(problem for table in status.tables for problem in _of_table(status, table)),
        *_of_rows(status),
        *_of_statements(status),
        *_of_unreadable(status),
        *(problem for one in status.derived for problem in _of_derived(status, one, limits.max_behind_s)),
        *_of_provisional(status),
        *_of_reference(status, limits.max_behind_s),
        *_of_maintenance(status, limits.max_unmaintained_s),
    )


def _of_clock(status: CentreStatus) -> Iterator[str]:
    if status.clock_ahead_s is None:
        yield "whether this machine's clock is right is unknown: the lake's store was not asked"
    elif abs(status.clock_ahead_s) > MAX_SKEW_S:
        where = "ahead of" if status.clock_ahead_s > 0 else "behind"
        yield f"this machine's clock is {abs(status.clock_ahead_s):.0f} s {where} the clock of the lake's store"


def _of_lag(status: CentreStatus, lag: TopicLag, max_lag_s: float) -> Iterator[str]:
    if lag.backlog is None:
        yield f"it is unknown what of {lag.topic} waits for the ingest: {lag.error or 'nobody said'}"
    elif lag.backlog:
        late = _late(status, lag.oldest, max_lag_s)
        if late:
            yield f"{lag.backlog:,} messages of {lag.topic} wait for the ingest, the oldest {late}"


def _of_left_out(status: CentreStatus, max_lag_s: float) -> Iterator[str]:
    """What waits there may be seen by nobody: the topic is gone, or nobody may look."""
    for one in status.left_out:
        if late := _late(status, one.since, max_lag_s):
            yield f"the ingest does not read {one.topic} {late}: {one.reason}"


def _of_table(status: CentreStatus, table: TableStatus) -> Iterator[str]:
    if table.error:
        yield f"table {table.table} cannot be read: {table.error}"
        return
    if table.missing_files:
        yield f"{table.missing_files} of the files of {table.table} are missing, or have another size than its log says"
    age_s = status.age_s(table.committed_at)
    if age_s is not None and age_s < -MAX_SKEW_S:
        yield f"the newest commit of {table.table} is {-age_s:.0f} s in the future: a clock was wrong, or is"


def _of_rows(status: CentreStatus) -> Iterator[str]:
    """A record that was received is one row, unless its position was erased."""
    rows = next((table.rows for table in status.tables if table.table == "records"), None)
    if rows is None or status.coverage is None or status.erasures is None:
        yield "whether each record is in the table once is unknown"
    elif rows > status.coverage.received:
        yield f"{rows - status.coverage.received:,} rows of records are more than were received: some are there twice"
    elif rows < status.coverage.received and not status.erasures:
        yield f"{status.coverage.received - rows:,} records that were received are not in the table"


def _of_statements(status: CentreStatus) -> Iterator[str]:
    batch = status.newest_batch
    if batch is not None and batch["disbelieved"]:
        yield (
            f"{batch['disbelieved']:,} statements of devices are not believed, so their periods stay open: clocks ahead"
            f" of the centre's: {batch['clocks_ahead']}; set them"
        )


def _of_unreadable(status: CentreStatus) -> Iterator[str]:
    batch = status.newest_batch
    if batch is not None and batch["unreadable"] * 100 > MAX_UNREADABLE_PERCENT * batch["records"]:
        yield (
            f"{batch['unreadable']:,} of {batch['records']:,} records of the newest micro-batch are messages that"
            f" agents could not read, in no bill: {batch['unreadable_of']}"
        )


def _of_derived(status: CentreStatus, one: DerivedStatus, max_behind_s: float) -> Iterator[str]:
    if one.error or one.commits_behind is None:
        yield f"it is unknown how far {one.table} is: {one.error or 'nobody said'}"
    # what is computed nowhere is not late
    elif one.commits_behind and (one.computed or one.table == _ALWAYS):
        late = _late(status, one.waiting_since, max_behind_s)
        if late:
            yield f"{one.table} is {one.commits_behind:,} commits behind, the oldest {late}"
    if one.computed and one.fences_since is not None and (late := _late(status, one.fences_since, max_behind_s)):
        yield f"{one.table} is computed with other fences than those in force, {late}"
    if one.unpublished_since is not None and (late := _late(status, one.unpublished_since, max_behind_s)):
        yield f"rows of {one.table} wait to be published, the oldest {late}"


def _of_provisional(status: CentreStatus) -> Iterator[str]:
    """An alert without a verdict for longer than one may be provisional: whoever gives them stands still."""
    if (found := status.provisional) is None:
        return
    if found.error:
        yield f"it is unknown whether each alert has its verdict: {found.error}"
    elif found.since is not None and (late := _late(status, found.since, found.bound_s + _DECIDED_WITHIN_S)):
        yield f"an alert waits for its verdict {late}"


def _of_reference(status: CentreStatus, max_behind_s: float) -> Iterator[str]:
    """Who takes what is published runs also while the fleet stands still, and no commit waits for it."""
    if status.reference is None or not any(one.computed for one in status.derived if one.table == _ALWAYS):
        return
    if status.reference.taken_at is None:
        yield "when fences, tariffs and accounts were last taken from their topics is unknown"
    elif late := _late(status, status.reference.taken_at, max_behind_s):
        yield f"fences, tariffs and accounts were not taken from their topics {late}"


def _of_maintenance(status: CentreStatus, max_s: float) -> Iterator[str]:
    last = status.maintenance
    if last.ended_at is None:
        yield "no run of the maintenance is known"
    elif late := _late(status, last.ended_at, max_s):
        yield f"the last run of the maintenance ended long ago, {late}"
    yield from (f"the last run of the maintenance failed in part: {error}" for error in last.errors)


def _late(status: CentreStatus, moment: datetime | None, max_s: float) -> str:
    """How late, in words; "" for what is in time."""
    age_s = status.age_s(moment)
    if age_s is None:
        return "for an unknown time"
    if age_s < -MAX_SKEW_S:
        return f"by a clock that is {-age_s:.0f} s ahead"
    return f"for {age_s:.0f} s, more than {max_s:g} s" if age_s > max_s else ""
