"""The numbers of the verdicts, beside those that every job has."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from prometheus_client import Counter, Gauge
from prometheus_client.registry import CollectorRegistry

from geo.alerts import VerdictKind

__all__ = ["VerdictMetrics"]


class VerdictMetrics:
    """In the registry of the job's runs. `now`: seconds by a clock that nobody sets."""

    def __init__(
        self, registry: CollectorRegistry, max_provisional_s: float, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._now = now
        self._given = Counter(
            "waybill_verdicts_given_total", "Verdicts given, revisions among them", ["verdict"], registry=registry
        )
        self._alerts = Counter(
            "waybill_verdicts_messages_total",
            "Messages of alerts, by what became of them",
            ["outcome"],
            registry=registry,
        )
        self._provisional = Gauge("waybill_verdicts_provisional_alerts", "Alerts without a verdict", registry=registry)
        oldest_s = Gauge(
            "waybill_verdicts_oldest_provisional_seconds",
            "The longest that an alert may have been waiting: since the oldest that waits, or since all had verdicts",
            registry=registry,
        )
        bound_s = Gauge(
            "waybill_verdicts_max_provisional_seconds", "So long an alert waits at the most", registry=registry
        )
        self._unnoted = Counter(
            "waybill_verdicts_unnoted_runs_total", "Runs that could not note what waits", registry=registry
        )
        self._left_out = Gauge("waybill_verdicts_left_out_topics", "Topics that cannot be read", registry=registry)
        # a run that fails or hangs sets nothing: so the age is that of the moment at which it is asked for
        self._decided_until_s = math.nan
        oldest_s.set_function(lambda: self._now() - self._decided_until_s)
        self._provisional.set(math.nan)
        self._left_out.set(math.nan)
        bound_s.set(max_provisional_s)
        for verdict in VerdictKind:
            self._given.labels(verdict)
        for outcome in ("added", "repeated", "refused"):
            self._alerts.labels(outcome)

    def take(self, counts: dict[str, Any]) -> None:
        """What one run did."""
        for verdict in VerdictKind:
            self._given.labels(verdict).inc(counts[verdict])
        for outcome, name in (("added", "alerts"), ("repeated", "repeated"), ("refused", "refused")):
            self._alerts.labels(outcome).inc(counts[name])
        self._provisional.set(counts["provisional"])
        self._left_out.set(counts["left_out"])
        self._unnoted.inc(counts["unnoted"])

    def on_published(self, counts: dict[str, Any], began_s: float) -> None:
        """What a run decided that began so to read the topics can be read: until then nobody has heard of it."""
        # what waits in a topic that was not read, or not to its end, is not known
        if not counts["left_out"] and not counts["unfinished"]:
            waits_s = counts["oldest_provisional_s"] if counts["provisional"] else 0
            self._decided_until_s = began_s - waits_s
