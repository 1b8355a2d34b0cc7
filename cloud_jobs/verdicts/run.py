"""`cloud-jobs verdicts`: alerts are collected, decided and their verdicts published; once, or until a signal."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import structlog

from cloud_jobs.config import CloudSettings
from cloud_jobs.errors import NotPublished
from cloud_jobs.metrics.run_metrics import RunMetrics
from cloud_jobs.metrics.serving import served_metrics
from cloud_jobs.outbox import Outbox, progress_file, topic_sender
from cloud_jobs.run_loop import run_repeatedly
from cloud_jobs.verdicts.collecting import collect_alerts
from cloud_jobs.verdicts.job import TABLE, VerdictRun, give_verdicts
from cloud_jobs.verdicts.lookups import Row, event_of
from cloud_jobs.verdicts.metrics import VerdictMetrics
from cloud_jobs.verdicts.subscription import AlertSubscription
from geo.alerts import AlertVerdict, VerdictKind
from geo.alerts.verdict import ErrorReason, FinalEvent
from runtime.signals import stop_on_signals

Counts = dict[str, Any]
_MAX_MESSAGES: Final = 5_000
"""So many are taken in one commit."""
# a million messages: more is left to the next run, which then has nothing else to do
_MAX_COMMITS: Final = 200
_COLLECT_S: Final = 60.0
"""After so long what is there is decided, and the rest is for the next run."""
_LOG = structlog.get_logger("verdicts", job="verdicts")


def run_verdicts(settings: CloudSettings, report: Callable[[Counts], object], *, follow: bool) -> None:
    """Collects, decides and publishes; with `follow` again and again until SIGTERM or SIGINT.

    Raises CommitConflict when another process does the same; LakeError; NotPublished and StoreUnavailable of a single
    run.
    """
    lake, given = settings.tables, settings.verdicts
    with settings.location.errors_named():
        lake.check("records")
        lake.create()
    alerts = AlertSubscription(settings.service_urls, settings.access, settings.alert_topics, given.subscription)

    runs = RunMetrics("verdicts", settings.status.max_behind_s)
    metrics = VerdictMetrics(runs.registry, given.max_provisional_s)

    def once() -> None:
        with runs.run() as measured:
            began = datetime.now(UTC)
            with settings.location.errors_named():
                counts = _collect(settings, alerts)
                run = give_verdicts(lake, given, datetime.now(UTC))
            counts |= _counts(run)
            metrics.take(counts)
            try:
                counts["published"] = _publish(settings)
                metrics.on_published(counts, began.timestamp())
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
    """A row of `verdicts` as consumers get it, as JSON."""
    stated = FinalEvent(**event_of(row)._asdict())
    is_withdrawn = row["verdict"] == VerdictKind.WITHDRAWN
    verdict = AlertVerdict(
        id=row["id"],
        revision=row["revision"],
        verdict=VerdictKind(row["verdict"]),
        tenant=row["tenant"],
        device=row["device"],
        event=None if is_withdrawn else stated,
        # whoever heard of it is found by what it was, when, and where
        alerted=stated if is_withdrawn else None,
        reason=None if row["reason"] is None else ErrorReason(row["reason"]),
        corrective_ids=tuple(row["corrective_ids"]),
        decided_ms=round(row["emitted_at"].timestamp() * 1000),
    )
    made: dict[str, Any] = verdict.model_dump(mode="json", exclude_none=True)
    return made


def _collect(settings: CloudSettings, alerts: AlertSubscription) -> Counts:
    """Takes what the topics have into the table; how many alerts are new, were there, and are none.

    All that there was when it began: an event is not to be called late while its alert waits behind others, and what
    comes all the time is not to hold up verdicts.
    """
    counts, began_s = Counter[str](), time.time()
    for _ in range(_MAX_COMMITS):
        received = alerts.receive(_MAX_MESSAGES, began_s)
        now, max_age = datetime.now(UTC), timedelta(days=settings.ingest.max_age_days)
        found = collect_alerts(settings.tables, received.messages, now, max_age)
        alerts.acknowledge()
        if found.refused:
            _LOG.warning("messages that are no alerts", refused=dict(found.refused), last=found.last_refused)
        refused = sum(found.refused.values())
        counts.update({"alerts": found.added, "repeated": found.repeated, "refused": refused})
        # a broker whose clock is behind never says that something is new
        if received.is_all or time.time() - began_s > _COLLECT_S:
            break
    return {**counts, "left_out": len(received.unread)}


def _counts(run: VerdictRun) -> Counts:
    return {name: getattr(run, name) for name in run.__slots__}


def _publish(settings: CloudSettings) -> int:
    """Publishes the verdicts that were not; a topic that fails keeps no other tenant's back."""
    count, failures = 0, []
    for name, tenant in settings.topics_of(settings.verdicts.topic).items():
        outbox = Outbox(settings.tables, TABLE, progress_file(settings.checkpoints, TABLE, tenant), tenant)
        try:
            count += outbox.flush(topic_sender(settings.service_urls, name, verdict_message, settings.access))
        except NotPublished as error:
            failures.append(error)
    if failures:
        raise failures[0]
    return count
