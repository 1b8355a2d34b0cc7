"""Prometheus metrics of an alert process. `docs/alerts-operation.md` lists them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Final, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gateway.alerts.evaluation import PassedOver
from gateway.alerts.status import AlertsStatus
from geo.spatial.event_ids import Kind
from waybill.daemon.status_server import StatusGauges, counted
from waybill.record import RefusalReason

# in addition to a gateway's reasons
_UNUSABLE: Final = ("tenant", "region", "sealed", "internal-error")

_EVALUATION_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
# fine around one second, the target
_PUBLISH_S = (0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2, 5, 10, 30, 60, 300, 900)
# the target is five seconds
_REBUILD_S = (0.1, 0.25, 0.5, 1, 2, 3, 5, 10, 20, 30, 60, 120, 300, 900)

# The status's key of each gauge: the name of its metric, and what it shows.
_GAUGES: Final = {
    "partitions_held": ("held_partitions", "Partitions of this process"),
    "partitions_unowned": ("unowned_partitions", "Partitions without a known owner"),
    "partitions_standby": ("standby_partitions", "Partitions of other processes that are followed"),
    "partitions_ready": ("ready_partitions", "Followed partitions that could be taken over"),
    "lag_s": ("lag_seconds", "Age of the newest batch read; NaN: unknown"),
    "alerts_waiting": ("waiting_alerts", "Alerts without Pulsar's receipt"),
    "devices_known": ("devices", "Devices in memory"),
    "fences_current": ("fences_up", "1 while fences are read to their end"),
    "fences_refused": ("refused_fences", "Publications of fences that cannot be used"),
    "healthy": ("healthy", "1 while healthy; NaN: unknown"),
}


class AlertMetrics:
    """The metrics of one process. Any thread counts."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._fixes = Counter("waybill_alerts_fixes_total", "Fixes evaluated", registry=registry)
        self._published = Counter(
            "waybill_alerts_published_total", "Alerts with a receipt", ["kind"], registry=registry
        )
        self.passed_over = Counter(
            "waybill_alerts_passed_over_total", "Messages without usable fixes", ["reason"], registry=registry
        )
        self._fixes_passed_over = Counter(
            "waybill_alerts_fixes_passed_over_total",
            "Fixes, events and devices left out",
            ["reason"],
            registry=registry,
        )
        self.failures = Counter(
            "waybill_alerts_publish_failures_total", "Sends that failed, repeated", registry=registry
        )
        self.lost = Counter("waybill_alerts_partitions_lost_total", "Partitions lost unexpectedly", registry=registry)
        self._evaluation_s = Histogram(
            "waybill_alerts_evaluation_seconds", "One evaluation of fixes", buckets=_EVALUATION_S, registry=registry
        )
        self._publish_s = Histogram(
            "waybill_alerts_publish_seconds",
            "From the arrival of the batch in the region to Pulsar's receipt of the alert",
            buckets=_PUBLISH_S,
            registry=registry,
        )
        self.rebuild_s = Histogram(
            "waybill_alerts_rebuild_seconds", "Rebuilds of a partition's state", buckets=_REBUILD_S, registry=registry
        )
        self._gauges = StatusGauges("waybill_alerts", _GAUGES, registry)
        self._fences = Gauge("waybill_alerts_fences", "Versions of fences and gates in force", registry=registry)
        self._begin_at_0()

    def _begin_at_0(self) -> None:
        # Prometheus sees no increase from nothing to 1: the first one needs a zero before it
        for kind in get_args(Kind):
            self._published.labels(kind)
        for one in fields(PassedOver):
            self._fixes_passed_over.labels(one.name)
        for reason in (*_UNUSABLE, *RefusalReason):
            self.passed_over.labels(reason)

    def on_evaluated(self, fixes: int, seconds: float) -> None:
        self._fixes.inc(fixes)
        self._evaluation_s.observe(seconds)

    def on_published(self, kind: str, seconds: float) -> None:
        """`seconds`: from the arrival of the batch in the region to the receipt of the alert."""
        self._published.labels(kind).inc()
        self._publish_s.observe(max(seconds, 0.0))

    def on_fixes_passed_over(self, counts: Mapping[str, int]) -> None:
        for reason, count in counts.items():
            if count > 0:
                self._fixes_passed_over.labels(reason).inc(count)

    @property
    def counts(self) -> dict[str, object]:
        """Counts since the start, by the status's keys."""
        return {
            "fixes_evaluated": counted(self._fixes).get("", 0),
            "alerts_published": sum(counted(self._published).values()),
            "fixes_passed_over": counted(self._fixes_passed_over),
        }

    def set_gauges(self, status: AlertsStatus) -> None:
        self._gauges.set(status)
        self._fences.set(status.fences + status.gates)
