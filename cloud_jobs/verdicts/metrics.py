"""The numbers of the verdicts, beside those that every job has."""

from __future__ import annotations

from typing import Any

from prometheus_client import Counter, Gauge
from prometheus_client.registry import CollectorRegistry

from geo.alerts import VerdictKind

__all__ = ["VerdictMetrics"]


class VerdictMetrics:
    """In the registry of the job's runs."""

    def __init__(self, registry: CollectorRegistry, max_provisional_s: float) -> None:
        self._given = Counter(
            "waybill_verdicts_given_total", "Verdicts given, revisions among them", ["kind"], registry=registry
        )
        self._alerts = Counter(
            "waybill_verdicts_messages_total",
            "Messages of alerts, by what became of them",
            ["outcome"],
            registry=registry,
        )
        self._provisional = Gauge("waybill_verdicts_provisional_alerts", "Alerts without a verdict", registry=registry)
        self._oldest_s = Gauge(
            "waybill_verdicts_oldest_provisional_seconds", "Since when the oldest of these waits", registry=registry
        )
        bound_s = Gauge(
            "waybill_verdicts_max_provisional_seconds", "So long an alert waits at the most", registry=registry
        )
        self._left_out = Gauge("waybill_verdicts_left_out_topics", "Topics that cannot be read", registry=registry)
        bound_s.set(max_provisional_s)
        for kind in VerdictKind:
            self._given.labels(kind)
        for outcome in ("added", "repeated", "refused"):
            self._alerts.labels(outcome)

    def take(self, counts: dict[str, Any]) -> None:
        """What one run did."""
        for kind in VerdictKind:
            self._given.labels(kind).inc(counts[kind])
        for outcome, name in (("added", "alerts"), ("repeated", "repeated"), ("refused", "refused")):
            self._alerts.labels(outcome).inc(counts[name])
        self._provisional.set(counts["provisional"])
        self._oldest_s.set(counts["oldest_provisional_s"])
        self._left_out.set(counts["left_out"])
