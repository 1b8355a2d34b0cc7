"""The status of the centre for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cloud_jobs.status.facts import CentreStatus, ProvisionalStatus
from waybill.settings import printable

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
    "unreadable_devices",
)
_TABLES: Final = ("table", "rows", "files", "bytes", "newest commit", "missing files")
_DERIVED: Final = ("derived", "commits behind", "records behind", "waiting for")


def status_tables(status: CentreStatus, problems: Sequence[str]) -> RenderableType:
    """All of it, and at the end what is wrong."""
    lag = _table(
        ("topic", "cluster", "messages waiting", "oldest"),
        ((one.topic, one.cluster, _number(one.backlog), _waits(status, one)) for one in status.lag),
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
                _records_behind(one.records_behind, one.records_behind_at_most),
                "" if one.commits_behind == 0 else _age(status.age_s(one.waiting_since)),
            )
            for one in status.derived
        ),
    )
    facts = Table(box=None, pad_edge=False, show_header=False)
    for name, text in _facts(status):
        facts.add_row(name, Text(printable(text, "\n")))
    verdict = [Text(printable(f"- {problem}", "\n")) for problem in problems]
    return Group(lag, Text(), tables, Text(), derived, Text(), facts, Text(), _verdict(problems), *verdict)


def _verdict(problems: Sequence[str]) -> Text:
    return Text("not healthy:", "bold red") if problems else Text("healthy", "bold green")


def _facts(status: CentreStatus) -> Iterable[tuple[str, str]]:
    batch, coverage, reference, last = status.newest_batch, status.coverage, status.reference, status.maintenance
    fence = "" if status.fence is None else f", fence {status.fence:016x}"
    for one in status.left_out:
        yield "not read", f"{one.topic}, left out {_age(status.age_s(one.since))}: {one.reason}"
    yield "ingest number", f"{_number(status.ingest_number)}{fence}"
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
    yield "last maintenance", _age(status.age_s(last.ended_at))


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


def _waits(status: CentreStatus, one: Any) -> str:
    return "" if one.backlog == 0 else _age(status.age_s(one.oldest))


def _records_behind(exact: int | None, at_most: int | None) -> str:
    return f"at most {at_most:,}" if exact is None and at_most is not None else _number(exact)


def _number(value: int | None) -> str:
    return _UNKNOWN if value is None else f"{value:,}"


def _age(age_s: float | None) -> str:
    if age_s is None:
        return _UNKNOWN
    return f"{_clock(age_s)} ago"


def _clock(span_s: float) -> str:
    days, rest = divmod(round(span_s), 86_400)
    hours, minutes, seconds = rest // 3600, rest // 60 % 60, rest % 60
    clock = f"{hours}:{minutes:02}:{seconds:02}"
    return f"{days} d {clock}" if days else clock


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        # as Text: Rich would read brackets in a name as markup
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table
