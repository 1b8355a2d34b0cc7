"""The notifier process: rules, topics, webhooks, status and threads."""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import structlog

from gateway.config import (
    OPEN_WORD,
    access_secrets,
    ending_tokens,
    file_problems,
    open_cluster,
    open_secrets,
    open_status,
    travels_in_plain_text,
)
from gateway.errors import AccountUnusable, SecretUnusable
from gateway.reference_follower import ReferencePublications, follow_reference
from gateway.webhooks.config import NotifierSettings
from gateway.webhooks.intake import AlertIntake, AlertTopic, TakenMessage
from gateway.webhooks.notebook import NotificationBook
from gateway.webhooks.notifier import GoingBy, Notifier
from gateway.webhooks.posting import SignedPost, WebhookQueue, context_of, read_secrets
from gateway.webhooks.rule_book import AccountDevices, RuleBook, usable_devices
from gateway.webhooks.status import NotifierStatus, WebhookMetrics, WebhookStatus
from gateway.webhooks.undelivered import UndeliveredWriter
from geo.alerts import UnusableRule, usable_rule
from waybill.daemon.service import STUCK_AFTER_S, Component, run_components, serve_status
from waybill.mqtt.broker_settings import is_this_machine
from waybill.pulsar.pulsar_client import TokenWatch, open_pulsar_client
from waybill.settings import file_fault

# Checks before the start.


def problems(settings: NotifierSettings) -> list[str]:
    """Why the process cannot run with these settings: each line names the setting and the file."""
    return [*_file_problems(settings), *([] if settings.insecure else _open(settings))]


def warnings(settings: NotifierSettings, config: Path, now_s: float) -> list[str]:
    nobody = [] if settings.webhooks else ["webhooks: no webhook is configured, so no alert is delivered"]
    readable = open_secrets(access_secrets(settings.pulsar, config))
    return [*_plain_text(settings), *readable, *ending_tokens(settings.pulsar, now_s), *nobody]


def _file_problems(settings: NotifierSettings) -> Iterator[str]:
    yield from file_problems(settings.pulsar, "rules", settings.rules)
    # the file is created at the first start
    if not settings.state_file.parent.is_dir():
        yield f"state_file: {settings.state_file.parent} is not a folder"
    for name, webhook in settings.webhooks.items():
        try:
            read_secrets(webhook.secret_file)
        except SecretUnusable as error:
            yield f"webhooks.{name}.secret_file: {error}{_taken_from(webhook.secret_file)}"
        try:
            context_of(webhook)
        except OSError as error:
            yield f"webhooks.{name}.ca: {webhook.ca}: {file_fault(error)}"


def _taken_from(file: Path) -> str:
    return "" if file.is_absolute() else f" (relative to the current folder {Path.cwd()}: use an absolute path)"


def _open(settings: NotifierSettings) -> Iterator[str]:
    """What lets others read or write without authentication: allowed only with `insecure`."""
    yield from open_cluster(settings.pulsar, "alerts")
    if settings.rules.unsigned:
        yield f"rules.unsigned: anyone who publishes there can receive alerts: set rules.operators, {OPEN_WORD}"
    for name, webhook in settings.webhooks.items():
        if webhook.url.startswith("http:"):
            yield f"webhooks.{name}.url: messages travel in plain text: use https://, {OPEN_WORD}"


def _plain_text(settings: NotifierSettings) -> Iterator[str]:
    yield from travels_in_plain_text(settings.pulsar, "alerts")
    for name, webhook in settings.webhooks.items():
        server = urlsplit(webhook.url)
        if server.scheme == "http" and not is_this_machine(server.hostname or ""):
            yield f"webhooks.{name}.url: messages travel to {server.hostname} in plain text; use https://"
    yield from open_status(settings.status.host)


# in one transaction, as each one syncs the disk
_AT_ONCE: Final = 500
_STOP_S: Final = 10.0
"""How long requests in flight are awaited at SIGTERM."""
# ended deliveries wait no longer than this
_WAIT_S: Final = 0.05
_LOG = structlog.get_logger("webhooks")


def alert_topics(settings: NotifierSettings) -> list[AlertTopic]:
    """The topics of all tenants. The order does not depend on the settings, as the first topic decides who is the
    standby.
    """
    return [
        topic
        for tenant in sorted(settings.tenants)
        for topic in (
            AlertTopic(settings.verdicts_topic(tenant), tenant, is_verdicts=True),
            *(
                AlertTopic(settings.alerts_topic(tenant, region), tenant, is_verdicts=False)
                for region in settings.regions
            ),
        )
    ]


class NotifierService:
    """One process. `log_suppressed` logs how many lines were left out."""

    def __init__(self, settings: NotifierSettings, log_suppressed: Callable[[], object] = lambda: None) -> None:
        """Raises SettingsError, OSError."""
        self._settings, self._log_suppressed = settings, log_suppressed
        source = settings.pulsar
        self._metrics = WebhookMetrics(settings.webhooks)
        open_client = partial(
            open_pulsar_client, source.service_url, source.access, timeout_s=source.operation_timeout_s
        )
        self._rules = follow_reference(
            source,
            settings.rules,
            partial(ReferencePublications, "alert_rule", usable_rule, (UnusableRule,)),
            lambda found: RuleBook(found.held),
        )
        self._accounts = follow_reference(
            source,
            settings.rules,
            partial(ReferencePublications, "account", usable_devices, (AccountUnusable,)),
            lambda found: AccountDevices(found.held),
        )
        self._writer = UndeliveredWriter(
            open_client,
            settings.undelivered_topic,
            self._on_written,
            tenants=len(settings.tenants),
        )
        self._queues = {
            name: WebhookQueue(
                name,
                one,
                SignedPost(one),
                self._on_ended,
                on_attempt=self._metrics.on_attempt,
            )
            for name, one in settings.webhooks.items()
        }
        self._intake = AlertIntake(open_client, source.subscription, alert_topics(settings), self._may_read)
        self._book = NotificationBook(settings.state_file)
        self._notifier = Notifier(
            settings.webhooks,
            self._queues,
            self._writer,
            self._book,
            self._metrics,
            alert_max_age_s=settings.alert_max_age_s,
            late_max_age_s=settings.late_max_age_s,
        )
        self._tokens = TokenWatch([source.access])
        self._began_s = self._turned_s = time.monotonic()
        self._first = NotifierStatus(
            pid=os.getpid(),
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            tenants=settings.tenants,
        )
        self._status = self._first

    def _on_ended(self, ended: Any) -> None:
        self._notifier.ended.append(ended)

    def _on_written(self, ended: Any) -> None:
        self._notifier.written.append(ended)

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then wait for requests in flight."""
        where, registry = self._settings.status, self._metrics.registry
        with serve_status(where, registry, lambda: self._status, self._is_alive) as server, self._book:
            _LOG.info("started", tenants=self._settings.tenants, webhooks=sorted(self._settings.webhooks))
            parts: list[Component] = [self._rules, self._accounts, self._writer, *self._queues.values(), self._intake]
            try:
                run_components(parts, server, turn=lambda _: self._turn(), update=self._update)
            finally:
                self._status = self._status.model_copy(update={"state": "stopping", "healthy": False})
                self._close()
            # nothing is lost: unfinished messages were not acknowledged, and come again
            _LOG.info("stopped", open_messages=len(self._notifier.open))

    def _turn(self) -> None:
        self._turned_s = time.monotonic()
        self._notifier.settle()
        if messages := self._messages():
            # none is read before rules and accounts are known
            by = self._going_by()
            assert by is not None
            self._notifier.take(messages, by)

    def _messages(self) -> list[TakenMessage]:
        found: list[TakenMessage] = []
        try:
            found.append(self._intake.taken.get(timeout=_WAIT_S))
            while len(found) < _AT_ONCE:
                found.append(self._intake.taken.get_nowait())
        except queue.Empty:
            pass
        return found

    def _going_by(self) -> GoingBy | None:
        rules, accounts = self._rules.rules, self._accounts.rules
        return None if rules is None or accounts is None else GoingBy(rules, accounts)

    def _may_read(self, tenant: str) -> bool:
        return self._going_by() is not None and not self._writer.is_full(tenant)

    def _close(self) -> None:
        ends_s = time.monotonic() + _STOP_S
        self._intake.stop()
        for one in self._queues.values():
            one.stop()
        late = [one.name for one in self._queues.values() if not one.join(ends_s)]
        if late:
            _LOG.warning("requests in flight are cancelled; their messages will be redelivered", webhooks=late)
        self._notifier.settle()
        self._writer.close()
        self._notifier.settle()
        self._intake.close()
        self._rules.close()
        self._accounts.close()

    def _update(self, now_s: float) -> None:
        rules, accounts = self._rules.reference_facts, self._accounts.reference_facts
        unread, is_standby = self._intake.problems, self._intake.is_standby
        # digests are due without new messages, too
        if (by := self._going_by()) is not None:
            self._notifier.tick(by)
        webhooks = tuple(self._webhook_status(name) for name in sorted(self._queues))
        # first: an ended token shows as time-outs, and causes the other problems
        problem = self._tokens.ended or self._problem(now_s, rules.problem or accounts.problem) or self._tokens.ending
        known: dict[str, object] = {
            "state": "waiting for rules" if by is None else ("standby" if is_standby else "running"),
            "healthy": False if problem else (None if is_standby else True),
            "last_error": problem,
            "topics_unread": unread,
            "open_messages": len(self._notifier.open),
            "unwritten": len(self._writer),
            "topics_unwritten": self._writer.problems,
            "rules": 0 if by is None else len(by.rules),
            "devices": 0 if by is None else len(by.accounts),
            "rules_current": not (rules.problem or accounts.problem),
            "rules_refused": len(rules.refused) + len(accounts.refused),
            "rule_last_refused": rules.last_refused or accounts.last_refused,
            "webhooks": webhooks,
        }
        status = self._first.model_copy(update={**self._metrics.counts, **known})
        self._metrics.set_gauges(status)
        self._status = status
        self._log_suppressed()

    def _webhook_status(self, name: str) -> WebhookStatus:
        facts = self._queues[name].facts
        return WebhookStatus(
            name=name,
            waiting=facts.unfinished,
            oldest_s=round(facts.oldest_s, 1),
            problem=facts.last_problem,
        )

    def _problem(self, now_s: float, reference: str) -> str:
        if self._going_by() is None:
            waited_s = now_s - self._began_s
            late = f" for {waited_s:.0f} s: nothing is delivered" if waited_s > self._settings.rules.wait_s else ""
            return f"rules and accounts are unknown{late}: {reference or 'they are being read'}"
        if unwritten := self._writer.problems:
            name, problem = next(iter(unwritten.items()))
            return f"undelivered messages are not written to {len(unwritten)} topics, {name} for instance: {problem}"
        if not self._intake.is_standby and (unread := self._intake.problems):
            name, problem = next(iter(unread.items()))
            return f"{len(unread)} topics are not read, {name} for instance: {problem}"
        # a failing webhook is shown next to its name
        return f"rules and accounts: {reference}" if reference else ""

    def _is_alive(self) -> bool:
        return time.monotonic() - min(self._turned_s, self._intake.turned_s) < STUCK_AFTER_S
