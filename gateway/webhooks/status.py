"""Status and metrics of the notifier."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from pydantic import BaseModel, ConfigDict
from rich.table import Table

from gateway.status_answer import facts_table, read_answer
from gateway.webhooks.notebook import PassDecision
from gateway.webhooks.posting import OUTCOMES, RESULTS, HttpOutcome
from waybill.daemon.status_reader import StatusEndpoint
from waybill.daemon.status_server import StatusGauges, counted

# Metrics of the notifier; `docs/alerts.md` lists them.

UNKNOWN_WEBHOOK: Final = "unknown"
"""The label of webhooks that the settings do not have."""

# up to the longest time of an attempt
_ATTEMPT_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 30, 60)

# The status's key of each gauge: the name of its metric, and what it shows.
_GAUGES: Final = {
    "unwritten": ("unwritten_messages", "Given up and not yet in Pulsar"),
    "open_messages": ("open_messages", "Read and not acknowledged yet"),
    "rules": ("rule_versions", "Alert rules in use"),
    "rules_current": ("rules_up", "1 while rules and accounts are read to their end"),
    "healthy": ("healthy", "1 while healthy; NaN: it is a standby"),
}


class WebhookMetrics:
    """The metrics of one process. Any thread counts. Labels are webhooks of the settings, never rules or devices."""

    def __init__(self, webhooks: Iterable[str]) -> None:
        self.registry = registry = CollectorRegistry()
        self.read = Counter("waybill_webhooks_messages_total", "Alerts and verdicts read", ["type"], registry=registry)
        self.passed_over = Counter(
            "waybill_webhooks_passed_over_total", "Messages without a recipient", ["reason"], registry=registry
        )
        self.held_back = Counter(
            "waybill_webhooks_held_back_total", "Messages that a rule held back", ["reason"], registry=registry
        )
        self.digests = Counter("waybill_webhooks_digests_total", "Digests of held-back messages", registry=registry)
        self._attempts = Counter(
            "waybill_webhooks_attempts_total",
            "Requests, by result",
            ["webhook", "result"],
            registry=registry,
        )
        self._ended = Counter(
            "waybill_webhooks_deliveries_total",
            "Finished deliveries, by outcome",
            ["webhook", "outcome"],
            registry=registry,
        )
        self._attempt_s = Histogram(
            "waybill_webhooks_attempt_seconds", "One request", ["webhook"], buckets=_ATTEMPT_S, registry=registry
        )
        self._waiting = Gauge(
            "waybill_webhooks_waiting_messages", "Unfinished deliveries", ["webhook"], registry=registry
        )
        self._oldest_s = Gauge(
            "waybill_webhooks_oldest_seconds", "Age of the oldest unfinished delivery", ["webhook"], registry=registry
        )
        self._gauges = StatusGauges("waybill_webhooks", _GAUGES, registry)
        # Prometheus sees no increase from nothing to 1: the first one needs a zero before it
        for name in (*webhooks, UNKNOWN_WEBHOOK):
            for outcome in OUTCOMES:
                self._ended.labels(name, outcome)
            for result in RESULTS if name != UNKNOWN_WEBHOOK else ():
                self._attempts.labels(name, result)
        for counter, words in (
            (self.read, ("alert", "verdict")),
            (self.passed_over, ("no-rule", "stale", "malformed", "tenant")),
            (self.held_back, (PassDecision.QUIET, PassDecision.LIMIT)),
        ):
            for word in words:
                counter.labels(word)

    def on_attempt(self, webhook: str, outcome: HttpOutcome, seconds: float) -> None:
        self._attempts.labels(webhook, outcome.reason).inc()
        self._attempt_s.labels(webhook).observe(max(seconds, 0.0))

    def on_ended(self, webhook: str, outcome: str) -> None:
        self._ended.labels(webhook, outcome).inc()

    @property
    def counts(self) -> dict[str, object]:
        """Counts since the start, by the status's keys."""
        return {
            "read": counted(self.read),
            "passed_over": counted(self.passed_over),
            "held_back": counted(self.held_back),
            "digests": sum(counted(self.digests).values()),
            "deliveries": counted(self._ended, "outcome"),
        }

    def set_gauges(self, status: NotifierStatus) -> None:
        for one in status.webhooks:
            self._waiting.labels(one.name).set(one.waiting)
            self._oldest_s.labels(one.name).set(one.oldest_s)
        self._gauges.set(status)


class WebhookStatus(BaseModel):
    """One webhook: unfinished deliveries, the age of the oldest, and the last problem or ""."""

    model_config = ConfigDict(frozen=True)

    name: str
    waiting: int = 0
    oldest_s: float = 0.0
    problem: str = ""


class NotifierStatus(BaseModel):
    """Counts are since `started_at` (ISO 8601).

    `healthy`: rules and accounts are current, every topic is read, and undelivered messages are stored. A failing
    webhook does not change it. None: the process is a standby. `unwritten`: undelivered messages that are not in Pulsar
    yet.
    """

    model_config = ConfigDict(frozen=True)

    pid: int
    started_at: str
    state: str = "starting"
    healthy: bool | None = False
    last_error: str = "starting"
    topics_unread: dict[str, str] = {}
    read: dict[str, int] = {}
    passed_over: dict[str, int] = {}
    held_back: dict[str, int] = {}
    digests: int = 0
    deliveries: dict[str, int] = {}
    open_messages: int = 0
    unwritten: int = 0
    topics_unwritten: dict[str, str] = {}
    rules: int = 0
    rules_current: bool = False
    rules_refused: int = 0
    rule_last_refused: str = ""
    devices: int = 0
    tenants: tuple[str, ...] = ()
    webhooks: tuple[WebhookStatus, ...] = ()


def read_notifier_status(endpoint: StatusEndpoint) -> NotifierStatus:
    """Ask the process that runs with these settings. Raises NoAnswer."""
    return read_answer(endpoint, "status", NotifierStatus, "nothing that delivers alerts", called="file")


def notifier_table(status: NotifierStatus) -> Table:
    facts = status.model_dump(exclude={"webhooks"}).items()
    rows = [(name.replace("_", " "), value) for name, value in facts]
    webhooks = [(f"webhook {one.name}", _said(one)) for one in status.webhooks]
    return facts_table("delivery of alerts", [*rows, ("delivers to", _delivers_to(status)), *webhooks])


def _delivers_to(status: NotifierStatus) -> str:
    if not status.webhooks:
        return "none: the settings have no webhook"
    if status.rules_current and not status.rules:
        return "none: no rule was published"
    return ", ".join(one.name for one in status.webhooks)


def _said(webhook: WebhookStatus) -> str:
    said = f"waiting {webhook.waiting}, oldest {webhook.oldest_s:.0f} s"
    return f"{said}; {webhook.problem}" if webhook.problem else said
