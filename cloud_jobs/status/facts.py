"""The state of the centre, its problems, and its table for the terminal. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, NamedTuple

from pydantic import TypeAdapter
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cloud_jobs.job_settings import CentreLimits
from waybill.settings import printable


@dataclass(frozen=True, slots=True)
class TableStatus:
    """A table by its log. `rows`: None if the log does not say; `missing_files`: named by the log and not there."""

    table: str
    rows: int | None = None
    files: int | None = None
    bytes: int | None = None
    committed_at: datetime | None = None
    missing_files: int | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class DerivedStatus:
    """How far a derived table is behind the records.

    `computed`: whether it ever was. `records_behind`: an upper bound, as a merged file may hold old records, too.
    `waiting_since`: when the oldest commit that it does not cover was made. `fences_since`: since when other fences are
    in force than those it was computed with, or None. `unpublished_since`: when the oldest row was made that this
    machine has to publish, or None.
    """

    table: str
    computed: bool | None = None
    commits_behind: int | None = None
    records_behind: int | None = None
    waiting_since: datetime | None = None
    fences_since: datetime | None = None
    unpublished_since: datetime | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class TopicLag:
    """The backlog of the ingest in one partition. `oldest`: when its oldest message was published.

    `answered`: whether the cluster answered, even if it has no such topic or subscription. `cut_off`: the clusters that
    replicate the topic and are not connected to this one, so their messages wait there.
    """

    topic: str
    cluster: str
    backlog: int | None = None
    oldest: datetime | None = None
    error: str = ""
    answered: bool = True
    cut_off: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicLeftOut:
    """A topic that the ingest cannot read: why, and since when."""

    topic: str
    cluster: str
    reason: str
    since: datetime


@dataclass(frozen=True, slots=True)
class CoverageStatus:
    """`open_streams`: device streams with a gap. The other counts are records."""

    streams: int
    open_streams: int
    received: int
    declared_lost: int
    missing: int


@dataclass(frozen=True, slots=True)
class ReferenceStatus:
    """Versions of fences, tariffs and accounts. `refused`: unusable publications; `quarantined`: messages that are
    none.

    `taken_at`: when a job last read the topics, or None.
    """

    in_force: int
    refused: int
    quarantined: int
    taken_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class MaintenanceStatus:
    """The last run of the maintenance; `ended_at` None: unknown."""

    ended_at: datetime | None = None
    seconds: float | None = None
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProvisionalStatus:
    """`bound_s`: the longest that an alert may wait for its verdict. `since`: when the oldest that waits came, or None.

    `error`: why that is unknown. `was_collected`: whether any alert ever was.
    """

    bound_s: float
    since: datetime | None = None
    error: str = ""
    was_collected: bool = True


@dataclass(frozen=True, slots=True)
class CentreStatus:
    """`clock_ahead_s`: how far this machine's clock is ahead of that of the lake's store. `ingest_number`: the
    number of ingest commits. `begun_at`: when the lake was made. `newest_batch`: the newest row of `ingest_batches`.
    `quarantine`: rows by cause. `provisional`: None: not asked. `errors`: what could not be read, by name.
    `token_problem`: why the token of `[access]` cannot be used, or "".
    """

    now: datetime
    clock_ahead_s: float | None = None
    ingest_number: int | None = None
    begun_at: datetime | None = None
    tables: tuple[TableStatus, ...] = ()
    derived: tuple[DerivedStatus, ...] = ()
    lag: tuple[TopicLag, ...] = ()
    left_out: tuple[TopicLeftOut, ...] = ()
    coverage: CoverageStatus | None = None
    newest_batch: Mapping[str, Any] | None = None
    quarantine: Mapping[str, int] | None = None
    reference: ReferenceStatus | None = None
    erasures: int | None = None
    erasures_pending: int | None = None
    maintenance: MaintenanceStatus = MaintenanceStatus()
    provisional: ProvisionalStatus | None = None
    errors: Mapping[str, str] = field(default_factory=dict)
    token_problem: str = ""

    def age_s(self, moment: datetime | None) -> float | None:
        return None if moment is None else (self.now - moment).total_seconds()

    def document(self) -> dict[str, Any]:
        facts: dict[str, Any] = _CENTRE.dump_python(self, mode="json")
        return facts


_CENTRE: Final = TypeAdapter(CentreStatus)


# Problems of the centre, one sentence each. Pure.

MAX_SKEW_S: Final = 300.0
"""The largest difference between two clocks."""
MAX_UNREADABLE_PERCENT: Final = 1
"""Per micro-batch, as in the alert WaybillRecordsUnreadable."""
_DECIDED_WITHIN_S: Final = 60.0
"""How long the withdrawal at the bound and its publication may take."""
_ALWAYS: Final = "usage"
"""Bills need this table, so it is late even if it was never computed."""


class Part(StrEnum):
    """What a problem is of."""

    TABLES = "tables"
    ROWS = "rows"
    BACKLOG = "backlog"
    LINKS = "links"
    LEFT_OUT = "left_out"
    STATEMENTS = "statements"
    UNREADABLE = "unreadable"
    QUARANTINE = "quarantine"
    USAGE = "usage"
    EVENTS = "geofence_events"
    ENCOUNTERS = "encounters"
    VERDICTS = "verdicts"
    REFERENCE = "reference"
    MAINTENANCE = "maintenance"
    CLOCK = "clock"
    TOKEN = "token"  # noqa: S105 - a name


_PART_OF: Final = {
    "the clock of the lake's store": Part.CLOCK,
    "coverage": Part.ROWS,
    "erasures": Part.ROWS,
    "ingest_batches": Part.STATEMENTS,
    "quarantine": Part.QUARANTINE,
    "reference": Part.REFERENCE,
    "the note of topics left out": Part.LEFT_OUT,
}


class Problem(NamedTuple):
    """A problem in one sentence. `runbook`: file of docs/runbooks and section. `since`: None: unknown.

    `is_unknown`: nothing is known to be wrong, but the state could not be found out.
    """

    part: Part
    text: str
    runbook: str
    since: datetime | None = None
    is_unknown: bool = False


def problems(status: CentreStatus, limits: CentreLimits) -> tuple[str, ...]:
    """One sentence for each problem; none: healthy. An unknown fact is a problem, too."""
    return tuple(one.text for one in found_problems(status, limits))


def found_problems(status: CentreStatus, limits: CentreLimits) -> tuple[Problem, ...]:
    """Each problem with its part and its section of the runbook."""
    return (
        *(
            Problem(
                _PART_OF.get(name, Part.TABLES),
                f"{name} cannot be read: {error}",
                "centre.md#WaybillFilesMissing",
                is_unknown=_PART_OF.get(name) is not Part.ROWS,
            )
            for name, error in status.errors.items()
        ),
        *_of_clock(status),
        *(
            [Problem(Part.TOKEN, status.token_problem, "centre.md#WaybillCentreUnhealthy")]
            if status.token_problem
            else []
        ),
        *(problem for lag in status.lag for problem in _of_lag(status, lag, limits.max_lag_s)),
        *_of_links(status.lag),
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


def _of_clock(status: CentreStatus) -> Iterator[Problem]:
    if status.clock_ahead_s is None:
        text = "this machine's clock was not compared with the clock of the lake's store"
        yield Problem(Part.CLOCK, text, "centre.md#WaybillClockWrong", is_unknown=True)
    elif abs(status.clock_ahead_s) > MAX_SKEW_S:
        where = "ahead of" if status.clock_ahead_s > 0 else "behind"
        text = f"this machine's clock is {abs(status.clock_ahead_s):.0f} s {where} the clock of the lake's store"
        yield Problem(Part.CLOCK, text, "centre.md#WaybillClockWrong")


def _of_lag(status: CentreStatus, lag: TopicLag, max_lag_s: float) -> Iterator[Problem]:
    if lag.backlog is None:
        text = f"the backlog of the ingest in {lag.topic} is unknown: {lag.error or 'the cluster did not report it'}"
        yield Problem(Part.BACKLOG, text, "centre.md#WaybillIngestBehind", is_unknown=True)
    elif lag.backlog:
        late = _late(status, lag.oldest, max_lag_s)
        if late:
            text = f"{lag.backlog:,} messages of {lag.topic} wait for the ingest, the oldest {late}"
            yield Problem(Part.BACKLOG, text, "centre.md#WaybillIngestBehind", lag.oldest)


def _of_links(lags: Iterable[TopicLag]) -> Iterator[Problem]:
    """One problem for each pair of clusters, however many topics it has."""
    topics: dict[tuple[str, str], set[str]] = {}
    for lag in lags:
        for source in lag.cut_off:
            topics.setdefault((source, lag.cluster), set()).add(lag.topic.partition("-partition-")[0])
    for (source, target), names in sorted(topics.items()):
        text = (
            f"cluster {source} is not connected to {target}, so its messages wait there: replication of"
            f" {', '.join(sorted(names))}; `waybill topology watch` shows the links"
        )
        yield Problem(Part.LINKS, text, "replication.md#WaybillLinkDown")


def _of_left_out(status: CentreStatus, max_lag_s: float) -> Iterator[Problem]:
    for one in status.left_out:
        if late := _late(status, one.since, max_lag_s):
            text = f"the ingest does not read {one.topic} {late}: {one.reason}"
            yield Problem(Part.LEFT_OUT, text, "centre.md#WaybillTopicLeftOut", one.since)


def _of_table(status: CentreStatus, table: TableStatus) -> Iterator[Problem]:
    if table.error:
        yield Problem(
            Part.TABLES, f"table {table.table} cannot be read: {table.error}", "centre.md#WaybillFilesMissing"
        )
        return
    if table.missing_files:
        text = (
            f"{table.missing_files} of the files of {table.table} are missing, or have another size than its log says"
        )
        yield Problem(Part.TABLES, text, "centre.md#WaybillFilesMissing")
    age_s = status.age_s(table.committed_at)
    if age_s is not None and age_s < -MAX_SKEW_S:
        text = f"the newest commit of {table.table} is {-age_s:.0f} s in the future: a clock is or was wrong"
        yield Problem(Part.CLOCK, text, "centre.md#WaybillClockWrong")


def _of_rows(status: CentreStatus) -> Iterator[Problem]:
    """A received record is one row, unless its position was erased."""
    rows = next((table.rows for table in status.tables if table.table == "records"), None)
    if rows is None or status.coverage is None or status.erasures is None:
        text = "it is unknown whether the table holds each record once"
        yield Problem(Part.ROWS, text, "centre.md#WaybillCentreUnhealthy", is_unknown=True)
    elif rows > status.coverage.received:
        text = f"{rows - status.coverage.received:,} duplicate rows in records"
        yield Problem(Part.ROWS, text, "centre.md#WaybillCentreUnhealthy")
    elif rows < status.coverage.received and not status.erasures:
        text = f"{status.coverage.received - rows:,} records that were received are not in the table"
        yield Problem(Part.ROWS, text, "centre.md#WaybillCentreUnhealthy")


def _of_statements(status: CentreStatus) -> Iterator[Problem]:
    batch = status.newest_batch
    if batch is not None and batch["disbelieved"]:
        text = (
            f"{batch['disbelieved']:,} device statements are ahead of the centre's clock and are ignored, so periods"
            f" stay open; correct the clocks: {batch['clocks_ahead']}"
        )
        yield Problem(Part.STATEMENTS, text, "centre.md#WaybillStatementsDisbelieved")


def _of_unreadable(status: CentreStatus) -> Iterator[Problem]:
    batch = status.newest_batch
    if batch is not None and batch["unreadable"] * 100 > MAX_UNREADABLE_PERCENT * batch["records"]:
        text = (
            f"{batch['unreadable']:,} of {batch['records']:,} records of the newest micro-batch are messages that"
            f" agents could not read, in no bill: {batch['unreadable_of']}"
        )
        yield Problem(Part.UNREADABLE, text, "centre.md#WaybillRecordsUnreadable")


def _of_derived(status: CentreStatus, one: DerivedStatus, max_behind_s: float) -> Iterator[Problem]:
    part = Part(one.table)
    if one.error or one.commits_behind is None:
        text = f"it is unknown how far {one.table} is: {one.error or 'the cluster did not report it'}"
        yield Problem(part, text, "centre.md#WaybillTableBehind", is_unknown=True)
    # a table that nobody computes is not late
    elif one.commits_behind and (one.computed or one.table == _ALWAYS):
        late = _late(status, one.waiting_since, max_behind_s)
        if late:
            text = f"{one.table} is {one.commits_behind:,} commits behind, the oldest {late}"
            yield Problem(part, text, "centre.md#WaybillTableBehind", one.waiting_since)
    if one.computed and one.fences_since is not None and (late := _late(status, one.fences_since, max_behind_s)):
        text = f"{one.table} is computed with other fences than those in force, {late}"
        yield Problem(part, text, "centre.md#WaybillOtherFences", one.fences_since)
    if one.unpublished_since is not None and (late := _late(status, one.unpublished_since, max_behind_s)):
        text = f"rows of {one.table} wait to be published, the oldest {late}"
        yield Problem(part, text, "centre.md#WaybillRowsUnpublished", one.unpublished_since)


def _of_provisional(status: CentreStatus) -> Iterator[Problem]:
    if (found := status.provisional) is None:
        return
    if found.error:
        text = f"it is unknown whether each alert has its verdict: {found.error}"
        yield Problem(Part.VERDICTS, text, "centre.md#WaybillVerdictsUnknown", is_unknown=True)
    elif found.since is not None and (late := _late(status, found.since, found.bound_s + _DECIDED_WITHIN_S)):
        yield Problem(
            Part.VERDICTS, f"an alert waits for its verdict {late}", "centre.md#WaybillAlertsProvisional", found.since
        )


def _of_reference(status: CentreStatus, max_behind_s: float) -> Iterator[Problem]:
    """The job that reads reference data also runs while the fleet stands still and no commit waits."""
    if status.reference is None or not any(one.computed for one in status.derived if one.table == _ALWAYS):
        return
    taken_at = status.reference.taken_at
    if taken_at is None:
        text = "the time of the last read of fences, tariffs and accounts is unknown"
        yield Problem(Part.REFERENCE, text, "centre.md#WaybillReferenceNotTaken", is_unknown=True)
    elif late := _late(status, taken_at, max_behind_s):
        text = f"fences, tariffs and accounts were not read from their topics {late}"
        yield Problem(Part.REFERENCE, text, "centre.md#WaybillReferenceNotTaken", taken_at)


def _of_maintenance(status: CentreStatus, max_s: float) -> Iterator[Problem]:
    last = status.maintenance
    if last.ended_at is None:
        # a new lake has nothing to maintain yet
        if _late(status, status.begun_at, max_s):
            text = "no run of the maintenance is known; run `cloud-jobs maintain --every 60`"
            yield Problem(Part.MAINTENANCE, text, "centre.md#WaybillMaintenanceLate")
    elif late := _late(status, last.ended_at, max_s):
        text = f"the last run of the maintenance ended long ago, {late}"
        yield Problem(Part.MAINTENANCE, text, "centre.md#WaybillMaintenanceLate", last.ended_at)
    for error in last.errors:
        text = f"the last run of the maintenance failed in part: {error}"
        yield Problem(Part.MAINTENANCE, text, "centre.md#WaybillMaintenanceFails", last.ended_at)


def _late(status: CentreStatus, moment: datetime | None, max_s: float) -> str:
    """How late, in words, or ""."""
    age_s = status.age_s(moment)
    if age_s is None:
        return "for an unknown time"
    if age_s < -MAX_SKEW_S:
        return f"by a clock that is {-age_s:.0f} s ahead"
    return f"for {age_s:.0f} s, more than {max_s:g} s" if age_s > max_s else ""


# The status as Rich tables.

_UNKNOWN: Final = "unknown"
_BATCH: Final = (
    "ingest_number",
    "messages",
    "accepted",
    "duplicates",
    "conflicts",
    "malformed",
    "far_off",
    "disbelieved",
    "unreadable",
)
_TABLES: Final = ("table", "rows", "files", "bytes", "newest commit", "missing files")
_DERIVED: Final = ("derived", "commits behind", "records behind, at most", "waiting for")


def status_tables(status: CentreStatus, problems: Sequence[str]) -> RenderableType:
    lag = _table(
        ("topic", "cluster", "messages waiting", "oldest"),
        (
            (
                one.topic,
                one.cluster,
                _number(one.backlog),
                "" if one.backlog == 0 else _age(status.age_s(one.oldest)),
            )
            for one in status.lag
        ),
    )
    tables = _table(
        _TABLES,
        (
            (
                one.table,
                *map(_number, (one.rows, one.files, one.bytes)),
                _age(status.age_s(one.committed_at)),
                _number(one.missing_files),
            )
            for one in status.tables
        ),
    )
    derived = _table(
        _DERIVED,
        (
            (
                one.table,
                "never computed" if one.computed is False else _number(one.commits_behind),
                _number(one.records_behind),
                "" if one.commits_behind == 0 else _age(status.age_s(one.waiting_since)),
            )
            for one in status.derived
        ),
    )
    facts = Table(box=None, pad_edge=False, show_header=False)
    for name, text in _facts(status):
        facts.add_row(name, Text(printable(text, "\n")))
    verdict = Text("not healthy:", "bold red") if problems else Text("healthy", "bold green")
    faults = [Text(printable(f"- {problem}", "\n")) for problem in problems]
    return Group(lag, Text(), tables, Text(), derived, Text(), facts, Text(), verdict, *faults)


def _facts(status: CentreStatus) -> Iterable[tuple[str, str]]:
    batch, coverage, reference, last = status.newest_batch, status.coverage, status.reference, status.maintenance
    for one in status.left_out:
        yield "not read", f"{one.topic}, left out {_age(status.age_s(one.since))}: {one.reason}"
    yield "ingest number", _number(status.ingest_number)
    yield "newest micro-batch", _UNKNOWN if batch is None else _batch(status, batch)
    yield (
        "coverage",
        _UNKNOWN
        if coverage is None
        else f"{coverage.streams:,} device streams, {coverage.open_streams:,} open; records: {coverage.received:,} "
        f"received, {coverage.declared_lost:,} declared lost, {coverage.missing:,} missing",
    )
    yield "quarantine", _UNKNOWN if status.quarantine is None else _quarantine(status.quarantine)
    yield (
        "reference data",
        _UNKNOWN
        if reference is None
        else f"{reference.in_force:,} in force, {reference.refused:,} refused, {reference.quarantined:,} in quarantine;"
        f" taken {_age(status.age_s(reference.taken_at))}",
    )
    yield "alerts", _UNKNOWN if status.provisional is None else _provisional(status, status.provisional)
    yield "erasures", f"{_number(status.erasures)} declared, {_number(status.erasures_pending)} pending"
    yield "last maintenance", "not yet run" if last.ended_at is None else _age(status.age_s(last.ended_at))


def _provisional(status: CentreStatus, alerts: ProvisionalStatus) -> str:
    bound = f"; one may wait for its verdict for {_clock(alerts.bound_s)}"
    if alerts.error:
        return f"{_UNKNOWN}: {alerts.error}"
    if not alerts.was_collected:
        return f"none was ever collected{bound}"
    if alerts.since is None:
        return f"none waits{bound}"
    return f"the oldest that waits came {_age(status.age_s(alerts.since))}{bound}"


def _batch(status: CentreStatus, batch: Any) -> str:
    counts = ", ".join(f"{name.replace('_', ' ')} {batch[name]:,}" for name in _BATCH)
    return f"{_age(status.age_s(batch['committed_at']))}: {counts}, in {batch['seconds']:.2f} s"


def _quarantine(counts: Any) -> str:
    return ", ".join(f"{cause} {count:,}" for cause, count in sorted(counts.items())) or "empty"


def _number(value: int | None) -> str:
    return _UNKNOWN if value is None else f"{value:,}"


def _age(age_s: float | None) -> str:
    return _UNKNOWN if age_s is None else f"{_clock(age_s)} ago"


def _clock(span_s: float) -> str:
    return str(timedelta(seconds=round(span_s)))


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        # as Text: Rich would read brackets in a name as markup
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table
