"""What one run of a job did, as its command shows it: counts, and all that it had to leave out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final

import structlog
from rich.console import Group, RenderableType
from rich.table import Table

from cloud_jobs.fitted_table import screen
from cloud_jobs.refused_table import quarantine_table, refused_table
from waybill.settings import printable_json

if TYPE_CHECKING:
    from cloud_jobs.reference import CollectedReference
    from geo.reference.in_force import RefusedVersion
    from geo.reference.messages import QuarantinedMessage

MAX_SHOWN: Final = 100
"""Of what was left out a table shows so many; JSON has all of it."""
_WIDTH: Final = 140
_REFUSED: Final = "refused_fences"


@dataclass(frozen=True, slots=True)
class JobResult:
    """What one run of `job` did.

    `counts`: numbers by name. `refused_fences`: publications of fences that cannot be used, of a job that uses fences;
    `quarantined`: messages of the topics that are no publications, of a run that collected them.
    """

    job: str
    counts: dict[str, int]
    refused_fences: tuple[RefusedVersion, ...]
    quarantined: tuple[QuarantinedMessage, ...]

    def with_published(self, count: int) -> JobResult:
        """The same, with the number of rows that were published."""
        return replace(self, counts=self.counts | {"published": count})

    def document(self) -> dict[str, Any]:
        """As plain values: the counts by their names, and each thing that was left out."""
        left_out = (_REFUSED, self.refused_fences), ("quarantined_messages", self.quarantined)
        return {"job": self.job, **self.counts, **{name: [asdict(one) for one in some] for name, some in left_out}}


Report = Callable[[JobResult], object]


def ignore_result(_: JobResult) -> None:
    """Reports nothing."""


def result_of(job: str, run: Any, collected: CollectedReference | None) -> JobResult:
    """The result of a run: each number of the run's dataclass, and how much was left out."""
    refused = getattr(run, _REFUSED, None)
    counts = {one.name: getattr(run, one.name) for one in fields(run) if one.name != _REFUSED}
    # a job that uses no fences refuses none
    counts |= {} if refused is None else {"fences_refused": len(refused)}
    counts |= {} if collected is None else {"messages_quarantined": len(collected.quarantined)}
    return JobResult(job, counts, refused or (), () if collected is None else collected.quarantined)


def start_report(*, as_json: bool) -> Report:
    """What prints the results of a command on standard output. From now on the log is on standard error, apart."""
    log_to_standard_error()
    return print_json if as_json else print_table


def log_to_standard_error() -> None:
    """From now on the log is on standard error, apart from results."""
    structlog.configure(logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))


def print_json(result: JobResult) -> None:
    """Prints a result as one line of JSON."""
    sys.stdout.write(printable_json(result.document()) + "\n")
    sys.stdout.flush()


def print_table(result: JobResult) -> None:
    """Prints a result as tables."""
    screen(_WIDTH).print(_tables(result))


def _tables(result: JobResult) -> RenderableType:
    counts = Table(box=None, pad_edge=False, show_header=False)
    for name, number in result.counts.items():
        counts.add_row(name.replace("_", " "), str(number))
    parts: list[RenderableType] = [counts]
    if result.refused_fences:
        parts.append(refused_table(result.refused_fences[:MAX_SHOWN]))
    if result.quarantined:
        parts.append(quarantine_table(result.quarantined[:MAX_SHOWN]))
    return Group(*parts)
