"""Results of runs, their output, and the loop that repeats runs."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final

import structlog

from cloud_jobs.errors import NotPublished, StoreUnavailable
from cloud_jobs.terminal import Column, FittedTable, screen
from geo.reference.in_force import RefusedVersion
from geo.reference.messages import QuarantinedMessage
from waybill.settings import printable_json

if TYPE_CHECKING:
    from cloud_jobs.reference.tables import CollectionResult
    from cloud_jobs.usage.devices import UsageSums


# Repeated runs of a job until a signal.


def run_repeatedly(
    run: Callable[[], object],
    *,
    interval_s: float,
    on_error: Callable[[Exception], object],
    stop: threading.Event,
    survives: tuple[type[Exception], ...] = (NotPublished, StoreUnavailable),
) -> None:
    """Runs at once, then `interval_s` after each end, until `stop`; an error of `survives` does not end it."""
    while not stop.is_set():
        try:
            run()
        except survives as error:
            on_error(error)
        # not `sleep`, which a signal would not end
        stop.wait(interval_s)


class PeriodicTrigger:
    """Fires the first time, and then once every `interval_s`."""

    def __init__(self, interval_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval_s, self._clock = interval_s, clock
        self._next = float("-inf")

    def fire(self) -> bool:
        now = self._clock()
        if now < self._next:
            return False
        self._next = now + self._interval_s
        return True


def quarantine_table(messages: Iterable[QuarantinedMessage]) -> FittedTable:
    """Messages in the topics of reference data that are no publications."""
    headings = map(Column.text, ("topic", "message id", "key", "reason"))
    table = FittedTable(*headings, title="In quarantine: no publications")
    for one in messages:
        table.add(one.topic, one.message_id, one.key, one.reason)
    return table


MAX_SHOWN: Final = 100
"""The most unusable versions or messages in a table; JSON has all."""
_WIDTH: Final = 140
_REFUSED: Final = "refused_fences"
_SUMS: Final = "sums"
_MM_PER_KM: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class JobResult:
    """What one run of `job` did. `counts`: numbers by name.

    `refused_fences`: unusable publications of fences; `quarantined`: messages that are no publications. `sums`: of a
    run that computes usage.
    """

    job: str
    counts: dict[str, int]
    refused_fences: tuple[RefusedVersion, ...]
    quarantined: tuple[QuarantinedMessage, ...]
    sums: UsageSums | None = None

    def with_published(self, count: int) -> JobResult:
        return replace(self, counts=self.counts | {"published": count})

    def document(self) -> dict[str, Any]:
        left_out = (_REFUSED, self.refused_fences), ("quarantined_messages", self.quarantined)
        return {
            "job": self.job,
            **self.counts,
            **({} if self.sums is None else {"computed": _sums_values(self.sums)}),
            **{name: [asdict(one) for one in some] for name, some in left_out},
        }


def _sums_values(sums: UsageSums) -> dict[str, Any]:
    return {
        "vehicles": sums.vehicles,
        "km": sums.distance_mm / _MM_PER_KM,
        "entries": sums.entries,
        "listed": [
            {
                "vehicle": f"{one.tenant}/{one.device}",
                "hours": one.hours,
                "km": one.distance_mm / _MM_PER_KM,
                "entries": one.entries,
            }
            for one in sums.listed
        ],
    }


Report = Callable[[JobResult], object]


def ignore_result(_: JobResult) -> None:
    """Reports nothing."""


def result_of(job: str, run: Any, collected: CollectionResult | None) -> JobResult:
    refused = getattr(run, _REFUSED, None)
    counts = {one.name: getattr(run, one.name) for one in fields(run) if one.name not in {_REFUSED, _SUMS}}
    # a job that uses no fences refuses none
    counts |= {} if refused is None else {"fences_refused": len(refused)}
    counts |= {} if collected is None else {"messages_quarantined": len(collected.quarantined)}
    return JobResult(
        job, counts, refused or (), () if collected is None else collected.quarantined, getattr(run, _SUMS, None)
    )


def start_report(*, as_json: bool) -> Report:
    """How results are printed to standard output. Sends the log to standard error."""
    log_to_standard_error()
    return print_json if as_json else print_table


def log_to_standard_error() -> None:
    structlog.configure(logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))


def print_json(result: JobResult) -> None:
    sys.stdout.write(printable_json(result.document()) + "\n")
    sys.stdout.flush()


def _sums_table(sums: UsageSums) -> FittedTable:
    """The usage of the hours that a run computed; a vehicle's hour may have been computed before, too."""
    numbers = (Column.number(name) for name in ("hours", "km", "entries"))
    table = FittedTable(Column.text("vehicle"), *numbers, title="Computed by this run, in whole hours")
    for one in sums.listed:
        name = f"{one.tenant}/{one.device}"
        table.add(name, f"{one.hours:,}", f"{one.distance_mm / _MM_PER_KM:.3f}", f"{one.entries:,}")
    if more := sums.vehicles - len(sums.listed):
        table.add(f"and {more:,} more vehicles")
    table.add_section()
    table.add(f"{sums.vehicles:,} in all", "", f"{sums.distance_mm / _MM_PER_KM:.3f}", f"{sums.entries:,}")
    return table


def print_table(result: JobResult) -> None:
    console = screen(_WIDTH)
    counts = FittedTable(Column.text(""), Column.number(""))
    for name, number in result.counts.items():
        counts.add(name.replace("_", " "), str(number))
    console.print(counts)
    if result.sums is not None and result.sums.vehicles:
        console.print(_sums_table(result.sums))
    if result.refused_fences:
        headings = map(Column.text, ("kind", "id", "effective from", "place", "reason"))
        refused = FittedTable(*headings, title="Cannot be used, and not in force")
        for one in result.refused_fences[:MAX_SHOWN]:
            refused.add(one.kind, one.id, one.effective_from, one.place, one.reason)
        console.print(refused)
    if result.quarantined:
        console.print(quarantine_table(result.quarantined[:MAX_SHOWN]))
