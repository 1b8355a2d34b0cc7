"""The numbers of the ingest: its micro-batches, what they held, and whether its query runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.registry import CollectorRegistry

_MICRO_BATCH_S: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class IngestMetrics:
    """Of one ingest, in a registry of its own. Spark's threads count, any may read.

    `now`: seconds since 1970.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.registry = registry = CollectorRegistry()
        self._now = now
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        self._seconds = Histogram(
            "waybill_ingest_micro_batch_seconds",
            "Time of a micro-batch, from the plan of its files to the last commit",
            registry=registry,
            buckets=_MICRO_BATCH_S,
        )
        self._ended = gauge(
            "waybill_ingest_micro_batch_end_timestamp_seconds", "When the last one was done, since 1970; 0: none was"
        )
        self._messages = counter("waybill_ingest_messages_total", "Messages read")
        self._records = counter(
            "waybill_ingest_records_total", "Records in them: accepted, or known already", ["outcome"]
        )
        self._quarantined = counter(
            "waybill_ingest_quarantined_total",
            "Messages that are no batch, and records that came again with another content",
            ["cause"],
        )
        self._far_off = counter("waybill_ingest_far_off_records_total", "Accepted records of clocks far off")
        self._disbelieved = counter(
            "waybill_ingest_disbelieved_statements_total", "Statements of devices that are not believed"
        )
        self._unreadable = counter(
            "waybill_ingest_unreadable_records_total", "Records that are messages which agents could not read"
        )
        self._unreadable_devices = counter(
            "waybill_ingest_unreadable_devices_total",
            "Devices of which a micro-batch had such records, and no position, signal or event",
        )
        self._failures = counter("waybill_ingest_query_failures_total", "Queries that failed and were started again")
        self._up = gauge("waybill_ingest_query_up", "1 while the streaming query runs")
        for outcome in ("accepted", "duplicate"):
            self._records.labels(outcome)
        for cause in ("malformed", "conflict"):
            self._quarantined.labels(cause)
        self._is_up, self._ended_s, self._failed_in_a_row = False, 0.0, 0

    def on_micro_batch(self, row: Mapping[str, Any]) -> None:
        """A micro-batch is done; the row of `ingest_batches` says what it was."""
        self._ended_s = self._now()
        self._failed_in_a_row = 0
        self._ended.set(self._ended_s)
        self._seconds.observe(row["seconds"])
        self._messages.inc(row["messages"])
        self._records.labels("accepted").inc(row["accepted"])
        self._records.labels("duplicate").inc(row["duplicates"])
        self._quarantined.labels("malformed").inc(row["malformed"])
        self._quarantined.labels("conflict").inc(row["conflicts"])
        self._far_off.inc(row["far_off"])
        self._disbelieved.inc(row["disbelieved"])
        self._unreadable.inc(row["unreadable"])
        self._unreadable_devices.inc(row["unreadable_devices"])

    def on_query(self, *, runs: bool) -> None:
        """The query was started, or has ended."""
        self._is_up = runs
        self._up.set(runs)

    def on_failure(self, in_a_row: int) -> None:
        """The query failed, so many times without a micro-batch between."""
        self.on_query(runs=False)
        self._failed_in_a_row = in_a_row
        self._failures.inc()

    def health(self) -> Mapping[str, Any]:
        """Whether the query runs; None before it first did, and after a failure until a micro-batch is done."""
        healthy = None if self._is_up == bool(self._failed_in_a_row) else self._is_up
        ended = datetime.fromtimestamp(self._ended_s, UTC).isoformat(timespec="milliseconds") if self._ended_s else None
        return {
            "healthy": healthy,
            "command": "ingest",
            "query_runs": self._is_up,
            "last_micro_batch_at": ended,
            "failures_in_a_row": self._failed_in_a_row,
        }
