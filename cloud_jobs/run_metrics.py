"""Prometheus metrics of the jobs, and how they are served."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog
from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.registry import CollectorRegistry

from cloud_jobs.job_settings import MetricsSettings
from waybill.daemon.status_server import HttpAnswer, Routes, StatusServer, json_answer, metrics_answer

if TYPE_CHECKING:
    from cloud_jobs.maintenance.job import MaintenanceRun


# The metrics server of a job.

Health = Callable[[], Mapping[str, Any]]
"""The answer of `/health`: status 503 if `healthy` is False, 200 if it is True or None (unknown)."""

_log = structlog.get_logger("metrics")


def metric_routes(registry: CollectorRegistry, health: Health) -> Routes:
    """`/metrics` for Prometheus, and `/health` for a supervisor."""

    def answer_health() -> HttpAnswer:
        answer = health()
        return json_answer(json.dumps(answer), is_good=answer["healthy"] is not False)

    return {"/metrics": lambda: metrics_answer(registry), "/health": answer_health}


@contextmanager
def served_metrics(
    settings: MetricsSettings, command: str, registry: CollectorRegistry, health: Health
) -> Iterator[None]:
    """Serves metrics while the block runs, if the settings have a port.

    If the port is taken, the job runs without metrics.
    """
    port = settings.port_of(command)
    if port is None:
        yield
        return
    try:
        server = StatusServer(settings.host, port, metric_routes(registry, health))
    except OSError as error:
        where = f"{settings.host}:{port}"
        _log.warning("metrics are not served", command=command, address=where, error=error.strerror or str(error))
        yield
        return
    with server:
        yield


# Metrics of the ingest.

_MICRO_BATCH_S: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class IngestMetrics:
    """Metrics of one ingest, in their own registry. Spark's threads count, and any thread may read.

    `now`: seconds since 1970.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.registry = registry = CollectorRegistry()
        self._now = now
        counter = partial(Counter, registry=registry)
        self._seconds = Histogram(
            "waybill_ingest_micro_batch_seconds",
            "Time of a micro-batch, from the plan of its files to the last commit",
            registry=registry,
            buckets=_MICRO_BATCH_S,
        )
        self._records = counter("waybill_ingest_records_total", "Records: accepted or duplicate", ["outcome"])
        self._quarantined = counter(
            "waybill_ingest_quarantined_total",
            "Undecodable messages, and records with a stored id but other content",
            ["cause"],
        )
        # by the name of the number in a row of `ingest_batches`
        self._counts = {
            "messages": counter("waybill_ingest_messages_total", "Messages read"),
            "accepted": self._records.labels("accepted"),
            "duplicates": self._records.labels("duplicate"),
            "malformed": self._quarantined.labels("malformed"),
            "conflicts": self._quarantined.labels("conflict"),
            "far_off": counter("waybill_ingest_far_off_records_total", "Accepted records with a wrong device time"),
            "disbelieved": counter(
                "waybill_ingest_disbelieved_statements_total",
                "Device statements ignored because they are ahead of the centre's clock",
            ),
            "unreadable": counter("waybill_ingest_unreadable_records_total", "Messages that agents could not read"),
        }
        self._failures = counter("waybill_ingest_query_failures_total", "Queries that failed and were started again")
        self._up = Gauge("waybill_ingest_query_up", "1 while the streaming query runs", registry=registry)
        self._is_up, self._ended_s, self._failed_in_a_row = False, 0.0, 0

    def on_micro_batch(self, row: Mapping[str, Any]) -> None:
        """Counts a completed micro-batch, as its row of `ingest_batches` describes it."""
        self._ended_s = self._now()
        self._failed_in_a_row = 0
        self._seconds.observe(row["seconds"])
        for name, metric in self._counts.items():
            metric.inc(row[name])

    def on_query(self, *, runs: bool) -> None:
        self._is_up = runs
        self._up.set(runs)

    def on_failure(self, in_a_row: int) -> None:
        """The query failed, `in_a_row` times without a micro-batch between."""
        self.on_query(runs=False)
        self._failed_in_a_row = in_a_row
        self._failures.inc()

    def health(self) -> Mapping[str, Any]:
        """Whether the query runs; None before it first did, and after a failure until a micro-batch is done."""
        healthy = None if self._is_up == bool(self._failed_in_a_row) else self._is_up
        return {
            "healthy": healthy,
            "command": "ingest",
            "query_runs": self._is_up,
            "last_micro_batch_at": _moment(self._ended_s) if self._ended_s else None,
            "failures_in_a_row": self._failed_in_a_row,
        }


# Metrics of jobs that run again and again.

_RUN_S: Final = (0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)
_MAX_ERROR_CHARACTERS: Final = 400


class RunOutcome(StrEnum):
    """How a run ended; IDLE: there was nothing to do."""

    COMPUTED = "computed"
    IDLE = "idle"
    FAILED = "failed"


class RunMetrics:
    """Metrics of one command, in their own registry. One thread runs the job, and any thread may read.

    `max_run_s`: a longer run makes the health false. `clock` and `now`: seconds, monotonic and since 1970.
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
        runs = counter("waybill_jobs_runs_total", "Runs, by how they ended", ["command", "outcome"])
        self._runs = {outcome: runs.labels(command, outcome) for outcome in RunOutcome}
        self._run_s = Histogram(
            "waybill_jobs_run_seconds", "Time of the runs that computed", ["command"], registry=registry, buckets=_RUN_S
        ).labels(command)
        self._ended = gauge(
            "waybill_jobs_run_end_timestamp_seconds",
            "When a run last ended well, since 1970; 0: none did",
            ["command"],
        ).labels(command)
        self._failures = gauge("waybill_jobs_failed_runs", "Runs in a row that failed", ["command"]).labels(command)
        self._rows = counter("waybill_jobs_rows_total", "Rows written: usage, or revisions", ["command"]).labels(
            command
        )
        self._published = counter("waybill_jobs_published_rows_total", "Rows published to a topic", ["command"]).labels(
            command
        )
        self._refused = gauge(
            "waybill_jobs_refused_fences", "Publications of fences that the last run could not use", ["command"]
        )
        self._began_s: float | None = None
        self._last: tuple[RunOutcome, float] | None = None
        self._failed_in_a_row, self._error = 0, ""

    @contextmanager
    def run(self) -> Iterator[OneRun]:
        """Measures one run; an error is counted and raised."""
        one, self._began_s = OneRun(), self._clock()
        try:
            yield one
        except BaseException as error:
            one.failed(str(error) or type(error).__name__)
            raise
        finally:
            self._count(one, self._clock() - self._began_s)
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

    def _count(self, one: OneRun, took_s: float) -> None:
        now_s = self._now()
        self._runs[one.outcome].inc()
        if one.outcome is RunOutcome.COMPUTED:
            self._run_s.observe(took_s)
        if one.outcome is RunOutcome.FAILED:
            self._failed_in_a_row += 1
        else:
            self._failed_in_a_row = 0
            self._ended.set(now_s)
        self._error = one.error[:_MAX_ERROR_CHARACTERS]
        self._failures.set(self._failed_in_a_row)
        self._last = (one.outcome, now_s)
        self._rows.inc(one.counts.get("rows", 0) + one.counts.get("revisions", 0))
        self._published.inc(one.counts.get("published", 0))
        if "fences_refused" in one.counts:
            self._refused.labels(self._command).set(one.counts["fences_refused"])


class OneRun:
    def __init__(self) -> None:
        self.outcome = RunOutcome.IDLE
        self.counts: dict[str, int] = {}
        self.error = ""

    def did(self, counts: Mapping[str, int], *, work: bool = True) -> None:
        """Adds counts; `work`: there was something to do."""
        self.counts |= counts
        if work:
            self.outcome = RunOutcome.COMPUTED

    def failed(self, error: str) -> None:
        self.outcome, self.error = RunOutcome.FAILED, error


class MaintenanceMetrics:
    """Metrics of `cloud-jobs maintain`, in the registry of its runs."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, registry=registry)
        self._merges = counter("waybill_maintain_merges_total", "Merges of files", ["table"])
        self._deleted = counter("waybill_maintain_deleted_files_total", "Deleted unused data files", ["table"])
        self._errors = counter("waybill_maintain_errors_total", "Parts of a run that failed")

    def on_run(self, run: MaintenanceRun, measured: OneRun) -> None:
        for table in run.tables:
            self._merges.labels(table.table).inc(table.merges)
            self._deleted.labels(table.table).inc(table.orphans + table.replaced_files)
        self._errors.inc(len(run.all_errors))
        measured.did({})
        if run.all_errors:
            measured.failed("; ".join(run.all_errors))


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
