"""The checks of the centre: the lake, what derives from it, and what waits in the topics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import pyarrow.compute as pc

from cloud_jobs.config import CloudSettings
from cloud_jobs.status.facts import CentreStatus, DerivedStatus, Part, Problem, found_problems
from console.health.bounded import Answer
from console.health.checks import BillStates, Check, Outcome, bills_kept
from console.lake import OpenLake
from console.page import duration_text
from waybill.settings import one_line

_TITLES: Final[Mapping[Part, str]] = {
    Part.TABLES: "Tables of the lake",
    Part.ROWS: "Each record once",
    Part.BACKLOG: "Ingest",
    Part.LINKS: "Links to the centre",
    Part.LEFT_OUT: "Topics that are read",
    Part.STATEMENTS: "Clocks of devices",
    Part.UNREADABLE: "Readable messages",
    Part.QUARANTINE: "Quarantine",
    Part.USAGE: "Usage",
    Part.EVENTS: "Events at fences",
    Part.ENCOUNTERS: "Encounters",
    Part.VERDICTS: "Verdicts on alerts",
    Part.REFERENCE: "Fences, tariffs and accounts",
    Part.MAINTENANCE: "Maintenance",
    Part.CLOCK: "Times of commits",
    Part.TOKEN: "Token of the jobs",
}
_AFFECTS: Final[Mapping[Part, str]] = {
    Part.TABLES: "whatever is read from these tables: pages, jobs and bills that need them stop",
    Part.ROWS: "usage and bills may count records twice or miss them; do not close or issue until the cause is known",
    Part.BACKLOG: "records that arrived{since} are in no table, event, usage or bill yet; {bills}",
    Part.LINKS: "records of the cut region wait there and are in no table, usage or bill yet; {bills}",
    Part.LEFT_OUT: "records of these topics are in no table, usage or bill; {bills}",
    Part.STATEMENTS: "periods of the devices of that region stay open, so their bills stay provisional; {bills}",
    Part.UNREADABLE: "these messages are in no bill, and periods of their devices stay provisional; {bills}",
    Part.QUARANTINE: "quarantined records are in no usage and no bill; {bills}",
    Part.USAGE: "usage of records that arrived{since}, and bills that are not final; {bills}",
    Part.EVENTS: "events at fences{since} are missing, and alerts wait for their verdicts; bills are not affected:"
    " usage does not read this table",
    Part.ENCOUNTERS: "encounters{since} are missing; bills are not affected: usage does not read this table",
    Part.VERDICTS: "alerts{since} may still turn out wrong; bills are not affected: usage does not read alerts",
    Part.REFERENCE: "fences, prices and accounts published{since} are not used; bills that are not final may have old"
    " ones; {bills}",
    Part.MAINTENANCE: "reads become slower, and data past its retention stays; bills are not affected",
    Part.CLOCK: "times of commits cannot be trusted, and maintenance deletes nothing; {bills}",
    Part.TOKEN: "jobs lose the clusters when it ends: nothing arrives then; {bills}",
}
_FINE: Final[Mapping[Part, str]] = {
    Part.LINKS: "the clusters that replicate to the centre are connected",
    Part.LEFT_OUT: "the ingest names no topic that it leaves out",
    Part.QUARANTINE: "nothing was quarantined in the last hour",
    Part.VERDICTS: "no alert waits longer than its limit",
    Part.REFERENCE: "they were read within the limit",
    Part.MAINTENANCE: "the lake is too young for a first run",
    Part.CLOCK: "no commit is in the future",
    Part.TOKEN: "it is valid, or none is needed",
    Part.ROWS: "each record is once in the table",
}
_OF_LAKE: Final = tuple(
    part for part in Part if part not in {Part.BACKLOG, Part.LINKS, Part.LEFT_OUT, Part.VERDICTS, Part.TOKEN}
)
_QUARANTINE_S: Final = 3600.0


class CentreAnswers(NamedTuple):
    """What was read of the centre. `status` has what `lake` answered, if it did, and what the topics answered."""

    lake: Answer[CentreStatus]
    status: CentreStatus
    quarantined: Answer[tuple[int, datetime | None]]


def checks_of_centre(
    centre: CentreAnswers, settings: CloudSettings, bills: Answer[BillStates]
) -> Iterator[Check | str]:
    """The checks of the centre; a text is what was not checked."""
    problems: dict[Part, list[Problem]] = {}
    for one in found_problems(centre.status, settings.status):
        # compared by `cloud-jobs status`, which writes a file into the lake for it
        if not (one.part is Part.CLOCK and one.is_unknown):
            problems.setdefault(one.part, []).append(one)
    for part in Part:
        of_part = problems.get(part, [])
        if part in _OF_LAKE and centre.lake.error:
            yield _without_lake(part, centre.lake.error)
        elif part is Part.QUARANTINE and not of_part:
            yield _check_quarantine(centre.quarantined, bills)
        elif of_part:
            yield _check_of(part, of_part, bills)
        elif part is Part.EVENTS and _lacks_events(centre.status):
            found = "fences are published, and the geofence job has never run: no event and no verdict is known"
            section = "centre.md#WaybillTableBehind"
            yield Check(part.value, _TITLES[part], Outcome.UNKNOWN, found, runbook=section, command=_STATUS)
        elif part is Part.LINKS and (silent := [one for one in centre.status.lag if not one.answered]):
            found = f"what is connected to {silent[0].cluster} is unknown: {silent[0].error}"
            section = "replication.md#WaybillClusterUnreachable"
            yield Check(part.value, _TITLES[part], Outcome.UNKNOWN, one_line(found), runbook=section, command=_STATUS)
        elif left_out := _not_checked(part, centre.status, settings):
            yield left_out
        else:
            yield Check(part.value, _TITLES[part], Outcome.FINE, _found(part, centre.status))


def _without_lake(part: Part, error: str) -> Check:
    if part is Part.TABLES:
        return Check(
            part.value, _TITLES[part], Outcome.WRONG, error, None, None, "centre.md#WaybillCentreNotLooked", _STATUS
        )
    found = "the lake cannot be read"
    return Check(part.value, _TITLES[part], Outcome.UNKNOWN, found, runbook="centre.md#WaybillCentreNotLooked")


_STATUS: Final = "cloud-jobs status"


def _check_of(part: Part, problems: list[Problem], bills: Answer[BillStates]) -> Check:
    known = [one for one in problems if not one.is_unknown]
    shown = known or problems
    since = min((one.since for one in known if one.since is not None), default=None)
    more = f" (and {len(shown) - 1} more)" if len(shown) > 1 else ""
    return Check(
        part.value,
        _TITLES[part],
        Outcome.WRONG if known else Outcome.UNKNOWN,
        one_line(shown[0].text + more, 400),
        since,
        affects(part, since, bills) if known else None,
        shown[0].runbook,
        _STATUS,
    )


def affects(part: Part, since: datetime | None, bills: Answer[BillStates]) -> str:
    """What a problem affects, in words of the business."""
    when = f" since {since:%Y-%m-%d %H:%M} UTC" if since else ""
    return _AFFECTS[part].format(since=when, bills=bills_kept(bills))


def _check_quarantine(answer: Answer[tuple[int, datetime | None]], bills: Answer[BillStates]) -> Check:
    title, section = _TITLES[Part.QUARANTINE], "centre.md#WaybillQuarantined"
    if answer.error:
        return Check("quarantine", title, Outcome.UNKNOWN, answer.error, runbook=section)
    count, since = answer.get()
    if not count:
        return Check("quarantine", title, Outcome.FINE, _FINE[Part.QUARANTINE])
    found = f"{count:,} records or messages were quarantined in the last hour"
    return Check(
        "quarantine", title, Outcome.WRONG, found, since, affects(Part.QUARANTINE, since, bills), section, _STATUS
    )


def read_quarantined(lake: OpenLake, now: datetime) -> tuple[int, datetime | None]:
    where = [("quarantined_at", ">=", now - timedelta(seconds=_QUARANTINE_S))]
    rows = lake.rows("quarantine", ("quarantined_at",), where=where)
    return rows.num_rows, pc.min(rows["quarantined_at"]).as_py()


def _lacks_events(status: CentreStatus) -> bool:
    """Whether events were never computed, although there are fences and records."""
    of_events = next(one for one in status.derived if one.table == Part.EVENTS.value)
    return of_events.computed is False and of_events.fences_since is not None and bool(of_events.commits_behind)


def _not_checked(part: Part, status: CentreStatus, settings: CloudSettings) -> str:
    """Why a part without a problem says nothing, or ""."""
    derived = {one.table: one for one in status.derived}
    if part in {Part.EVENTS, Part.ENCOUNTERS} and not derived[part.value].computed:
        return f"{_TITLES[part]}: the table was never computed"
    if part is Part.VERDICTS and status.provisional is not None and not status.provisional.was_collected:
        return f"{_TITLES[part]}: no alert was ever collected"
    if part is Part.LEFT_OUT and not settings.checkpoints.is_dir():
        return f"{_TITLES[part]}: the ingest does not run on this machine, which has no {settings.checkpoints}"
    if part is Part.REFERENCE and not derived["usage"].computed:
        return f"{_TITLES[part]}: usage was never computed"
    return ""


def _found(part: Part, status: CentreStatus) -> str:
    """What was found of a part without a problem."""
    derived: dict[str, DerivedStatus] = {one.table: one for one in status.derived}
    found = ""
    if part in {Part.USAGE, Part.EVENTS, Part.ENCOUNTERS}:
        behind = derived[part.value].commits_behind
        found = f"{behind:,} commits behind, within the limit" if behind else "it covers every commit of the ingest"
    elif part is Part.BACKLOG:
        waiting = sum(one.backlog or 0 for one in status.lag)
        found = f"{waiting:,} messages wait, within the limit" if waiting else "no message waits"
    elif part is Part.ROWS and status.coverage is not None:
        found = f"{status.coverage.received:,} records received, each once in the table"
    elif part is Part.TABLES:
        found = f"{len(status.tables)} tables, and every file that their logs name"
    elif part is Part.MAINTENANCE and (age_s := status.age_s(status.maintenance.ended_at)) is not None:
        found = f"the last run ended {duration_text(age_s)} ago"
    elif part in {Part.STATEMENTS, Part.UNREADABLE}:
        found = "nothing is wrong in the newest micro-batch" if status.newest_batch else "no micro-batch was made yet"
    return found or _FINE[part]
