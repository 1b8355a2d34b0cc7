"""The numbers of a job that is run again and again: how its runs ended, how long they took, and what they did."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import Any, Final

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.registry import CollectorRegistry

_RUN_S: Final = (0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)
_MAX_ERROR_CHARACTERS: Final = 400
# The number of a run's result: the gauge that shows what the last run found.
_FOUND: Final = {
    "commits_behind": ("waybill_jobs_behind_commits", "Commits of the ingest that the last run found new"),
    "records_behind": ("waybill_jobs_behind_records", "Records that the last run found new"),
    "fences_refused": ("waybill_jobs_refused_fences", "Publications of fences that the last run could not use"),
    "messages_quarantined": (
        "waybill_jobs_quarantined_messages",
        "Messages in the topics of reference data that are no publications, as a run last saw them",
    ),
}
_ROWS: Final = ("rows", "revisions")


class RunOutcome(StrEnum):
    """How a run ended; IDLE: there was nothing to do."""

    COMPUTED = "computed"
    IDLE = "idle"
    FAILED = "failed"


class RunMetrics:
    """Of one command, in a registry of its own. One thread runs the job, any may read.

    `max_run_s`: a run that takes longer makes the health false. `clock` and `now`: seconds, monotonic and since 1970.
    """

    def __init__(
        self,
        command: str,
        max_run_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.registry = registry = CollectorRegistry()
        self._command, self._max_run_s, self._clock, self._now = command, max_run_s, clock, now
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        of_command = ["command"]
        self._runs = counter("waybill_jobs_runs_total", "Runs, by how they ended", ["command", "outcome"])
        self._run_s = Histogram(
            "waybill_jobs_run_seconds", "Time of the runs that computed", of_command, registry=registry, buckets=_RUN_S
        )
        self._ended = gauge(
            "waybill_jobs_run_end_timestamp_seconds", "When a run last ended well, since 1970; 0: none did", of_command
        )
        self._failures = gauge("waybill_jobs_failed_runs", "Runs in a row that failed", of_command)
        self._rows = counter("waybill_jobs_rows_total", "Rows written: usage, or revisions", of_command)
        self._published = counter("waybill_jobs_published_rows_total", "Rows published to a topic", of_command)
        self._found = {key: gauge(name, text, of_command) for key, (name, text) in _FOUND.items()}
        for outcome in RunOutcome:
            self._runs.labels(command, outcome)
        for metric in (self._run_s, self._ended, self._failures, self._rows, self._published):
            metric.labels(command)
        self._began_s: float | None = None
        self._last: tuple[RunOutcome, float] | None = None
        self._failed_in_a_row, self._error = 0, ""

    @contextmanager
    def run(self) -> Iterator[OneRun]:
        """One run; what it raises is counted, and raised."""
        one, self._began_s = OneRun(), self._clock()
        try:
            yield one
        except BaseException as error:
            one.failed(str(error) or type(error).__name__)
            raise
        finally:
            self._take(one, self._clock() - self._began_s)
            self._began_s = None

    def health(self) -> Mapping[str, Any]:
        """Whether the last run ended well and none takes too long; `healthy` is None before the first one ended."""
        began_s, last = self._began_s, self._last
        running_s = None if began_s is None else self._clock() - began_s
        if self._failed_in_a_row or (running_s or 0) > self._max_run_s:
            healthy: bool | None = False
        else:
            healthy = None if last is None else True
        return {
            "healthy": healthy,
            "command": self._command,
            "last_outcome": None if last is None else str(last[0]),
            "last_ended_at": None if last is None else _moment(last[1]),
            "running_s": None if running_s is None else round(running_s, 3),
            "failures_in_a_row": self._failed_in_a_row,
            "last_error": self._error,
        }

    def _take(self, one: OneRun, took_s: float) -> None:
        command, now_s = self._command, self._now()
        self._runs.labels(command, one.outcome).inc()
        if one.outcome is RunOutcome.COMPUTED:
            self._run_s.labels(command).observe(took_s)
        self._failed_in_a_row = self._failed_in_a_row + 1 if one.outcome is RunOutcome.FAILED else 0
        self._error = one.error[:_MAX_ERROR_CHARACTERS]
        self._failures.labels(command).set(self._failed_in_a_row)
        if one.outcome is not RunOutcome.FAILED:
            self._ended.labels(command).set(now_s)
        self._last = (one.outcome, now_s)
        self._rows.labels(command).inc(sum(one.counts.get(name, 0) for name in _ROWS))
        self._published.labels(command).inc(one.counts.get("published", 0))
        for key in _FOUND.keys() & one.counts.keys():
            self._found[key].labels(command).set(one.counts[key])


class OneRun:
    """What becomes of a run while it goes on."""

    def __init__(self) -> None:
        self.outcome = RunOutcome.IDLE
        self.counts: dict[str, int] = {}
        self.error = ""

    def did(self, counts: Mapping[str, int], *, work: bool = True) -> None:
        """It wrote what the counts say; `work`: there was something to do."""
        self.counts |= counts
        if work:
            self.outcome = RunOutcome.COMPUTED

    def failed(self, error: str) -> None:
        """It failed, wholly or in part."""
        self.outcome, self.error = RunOutcome.FAILED, error


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
