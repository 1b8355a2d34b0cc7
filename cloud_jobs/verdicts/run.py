"""`cloud-jobs verdicts`: collects alerts, decides about them and publishes the verdicts; once, or until a signal."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
from prometheus_client import Counter, Gauge
from prometheus_client.registry import CollectorRegistry

from cloud_jobs.config import CloudSettings
from cloud_jobs.derived.outbox import publish_rows
from cloud_jobs.run_metrics import RunMetrics, served_metrics
from cloud_jobs.run_result import run_repeatedly
from cloud_jobs.verdicts.deciding import OpenAlerts
from cloud_jobs.verdicts.job import TABLE, VerdictRun, give_verdicts
from cloud_jobs.verdicts.subscription import AlertSubscription, Row, collect, event_of
from geo.alerts import AlertVerdict, VerdictKind
from geo.alerts.messages import FinalEvent
from geo.spatial import DayEvent
from waybill.daemon.signals import stop_on_signals

# Metrics of the verdicts.


class VerdictMetrics:
    """Metrics in the registry of the job's runs. `now`: a monotonic clock (s)."""

    def __init__(
        self, registry: CollectorRegistry, max_provisional_s: float, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._now = now
        self._given = Counter(
            "waybill_verdicts_given_total", "Verdicts given, revisions among them", ["verdict"], registry=registry
        )
        self._alerts = Counter(
            "waybill_verdicts_messages_total",
            "Messages of alerts, by outcome",
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
            "waybill_verdicts_max_provisional_seconds", "The longest that an alert may wait", registry=registry
        )
        self._left_out = Gauge("waybill_verdicts_left_out_topics", "Topics that cannot be read", registry=registry)
        # computed when it is read, as a run that fails or hangs sets nothing
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
        for verdict in VerdictKind:
            self._given.labels(verdict).inc(counts[verdict])
        for outcome, name in (("added", "alerts"), ("repeated", "repeated"), ("refused", "refused")):
            self._alerts.labels(outcome).inc(counts[name])
        self._provisional.set(counts["provisional"])
        self._left_out.set(counts["left_out"])

    def on_published(self, counts: dict[str, Any], began_s: float) -> None:
        """The verdicts of a run that began at `began_s` are published: until then nobody has received them."""
        # the backlog of a topic that was not read to its end is unknown
        if not counts["left_out"] and not counts["unfinished"]:
            waits_s = counts["oldest_provisional_s"] if counts["provisional"] else 0
            self._decided_until_s = began_s - waits_s


Counts = dict[str, Any]
_LOG = structlog.get_logger("verdicts", job="verdicts")


def run_verdicts(settings: CloudSettings, report: Callable[[Counts], object], *, follow: bool) -> None:
    """Run once, or with `follow` until SIGTERM or SIGINT.

    Raises CommitConflict if another process does the same; LakeError; a single run also NotPublished and
    StoreUnavailable.
    """
    lake, given = settings.tables, settings.verdicts
    with settings.location.errors_named():
        lake.check("records")
        lake.create()
    alerts = AlertSubscription(settings.service_urls, settings.access, settings.alert_topics, given.subscription)

    runs = RunMetrics("verdicts", settings.status.max_behind_s)
    metrics = VerdictMetrics(runs.registry, given.max_provisional_s)

    left: OpenAlerts | None = None

    def once() -> None:
        nonlocal left
        with runs.run() as measured:
            began_s = time.monotonic()
            with settings.location.errors_named():
                counts = collect(lake, alerts, timedelta(days=settings.ingest.max_age_days))
                run, left = give_verdicts(lake, given, datetime.now(UTC), left)
            counts |= _counts(run)
            metrics.take(counts)
            try:
                counts["published"] = publish_rows(settings, TABLE, settings.verdicts.topic, verdict_message)
                metrics.on_published(counts, began_s)
            finally:
                measured.did({"published": counts.get("published", 0)}, work=bool(run or counts["alerts"]))
                if not follow or run or counts["alerts"] or counts.get("published"):
                    _LOG.info("decided", **counts)
                    report(counts)

    _LOG.info("started", lake=str(settings.lake), topics=len(settings.alert_topics))
    served = served_metrics(settings.metrics, "verdicts", runs.registry, runs.health)
    with stop_on_signals() if follow else nullcontext() as stop, served if follow else nullcontext():
        try:
            if stop is None:
                once()
            else:
                run_repeatedly(
                    once,
                    interval_s=given.interval_s,
                    on_error=lambda error: _LOG.warning("tried again", error=str(error)),
                    stop=stop,
                )
        finally:
            alerts.close()
    _LOG.info("stopped")


def verdict_message(row: Row) -> dict[str, Any]:
    stated = event_of(row)
    is_withdrawn = row["verdict"] == VerdictKind.WITHDRAWN
    # its recipients are found by the event
    alerted = stated if is_withdrawn else _said_by(row, "alerted", than=[stated])
    previous = _said_by(row, "previous", than=[stated, alerted])
    verdict = AlertVerdict(
        id=row["id"],
        revision=row["revision"],
        verdict=VerdictKind(row["verdict"]),
        tenant=row["tenant"],
        device=row["device"],
        event=None if is_withdrawn else _final(stated),
        alerted=_final(alerted),
        previous=_final(previous),
        reason=row["reason"],
        decided_ms=round(row["emitted_at"].timestamp() * 1000),
    )
    made: dict[str, Any] = verdict.model_dump(mode="json", exclude_none=True)
    return made


def _said_by(row: Row, who: str, than: Sequence[DayEvent | None]) -> DayEvent | None:
    """What the region or the revision before said, if it differs from these."""
    time_, value = row[f"{who}_time"], row[f"{who}_value"]
    said = None if time_ is None else event_of(row | {"time": time_, "value": value})
    return None if said in than else said


def _final(event: DayEvent | None) -> FinalEvent | None:
    return None if event is None else FinalEvent(**event._asdict())


def _counts(run: VerdictRun) -> Counts:
    return {name: getattr(run, name) for name in run.__slots__}
