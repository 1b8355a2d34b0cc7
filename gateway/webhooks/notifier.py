"""Decides about each message by the rules, sends it to its webhooks, and acknowledges it when all deliveries have
ended.

One thread calls everything here. Results of queues and of the writer come as events, which this thread takes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Final, NamedTuple

import structlog

from gateway.webhooks.config import WebhookSettings
from gateway.webhooks.intake import TakenMessage
from gateway.webhooks.notebook import (
    Digest,
    HeldBack,
    NotificationBook,
    PassDecision,
    digests_of,
    is_digest_due,
)
from gateway.webhooks.notification import (
    MAX_NAMED_RULES,
    Notification,
    alert_notification,
    body_of,
    verdict_notification,
)
from gateway.webhooks.posting import MAX_WAITING, EndedDelivery, WebhookDelivery, WebhookQueue
from gateway.webhooks.rule_book import AccountDevices, RuleBook, routes
from gateway.webhooks.status import UNKNOWN_WEBHOOK, WebhookMetrics
from gateway.webhooks.undelivered import UndeliveredWriter
from geo.alerts import AlertRule, MalformedAlert

# Unacknowledged messages and their open deliveries. Pure.


@dataclass(slots=True)
class _Open:
    message: TakenMessage
    left: int


@dataclass(slots=True)
class OpenMessages:
    """Messages with unfinished deliveries. Each message is acknowledged once, when all of its deliveries have ended."""

    _open: dict[str, _Open] = field(default_factory=dict)
    _by_delivery: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._open)

    def is_known(self, message: TakenMessage) -> bool:
        """Whether the message is open. After a lost connection it comes again, and its newest copy is acknowledged."""
        if (found := self._open.get(message.place)) is None:
            return False
        # an acknowledgement over the lost connection would go nowhere
        found.message = message
        return True

    def begin(self, message: TakenMessage, deliveries: list[int]) -> None:
        """Add a message with the numbers of its deliveries. Without deliveries it is acknowledged at once."""
        # it has no recipient, or the decision to hold it back is on disk
        if not deliveries:
            message.acknowledge()
            return
        self._open[message.place] = _Open(message, len(deliveries))
        self._by_delivery.update(dict.fromkeys(deliveries, message.place))

    def end(self, delivery: int) -> None:
        """A delivery has ended. The delivery of a digest belongs to no message."""
        if (place := self._by_delivery.pop(delivery, None)) is not None:
            found = self._open[place]
            found.left -= 1
            if not found.left:
                del self._open[place]
                found.message.acknowledge()


# deleting costs a commit
FORGET_S: Final = 60.0
_LOG = structlog.get_logger("webhooks")


class GoingBy(NamedTuple):
    rules: RuleBook
    accounts: AccountDevices


class Notifier:
    """`queues`: by webhook. `alert_max_age_s`, `late_max_age_s`: see Notification.is_stale. `clock`: seconds since
    1970; `monotonic`: for ages.
    """

    def __init__(
        self,
        webhooks: Mapping[str, WebhookSettings],
        queues: Mapping[str, WebhookQueue],
        writer: UndeliveredWriter,
        book: NotificationBook,
        metrics: WebhookMetrics,
        *,
        alert_max_age_s: float,
        late_max_age_s: float,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_ages_s = {"alert_max_age_s": alert_max_age_s, "late_max_age_s": late_max_age_s}
        self._webhooks, self._queues, self._writer, self._book = webhooks, queues, writer, book
        self._metrics, self._clock, self._monotonic = metrics, clock, monotonic
        self.open = OpenMessages()
        self._numbers = count()
        self._on_way: set[str] = set()
        self.ended: deque[EndedDelivery] = deque()
        """What queues say that ended; `append` is their only use of it."""
        self.written: deque[EndedDelivery] = deque()
        """What the writer says that Pulsar has."""
        self._forget_s = 0.0

    def take(self, messages: Iterable[TakenMessage], by: GoingBy) -> None:
        """Decide about messages. The decisions are written in one transaction before any message is sent or
        acknowledged.
        """
        # one moment for all of them
        now_ms = round(self._clock() * 1000)
        decided: list[tuple[TakenMessage, list[WebhookDelivery]]] = []
        with self._book.transaction():
            new = (message for message in messages if not self.open.is_known(message))
            decided.extend((message, self._decided(message, by, now_ms)) for message in new)
        for message, deliveries in decided:
            # a message may occur twice among these
            if not self.open.is_known(message):
                self._begin(message, deliveries)

    def settle(self) -> None:
        """Take the results of queues and of the writer."""
        done: list[EndedDelivery] = []
        while self.ended:
            ended = self.ended.popleft()
            self._metrics.on_ended(ended.delivery.webhook, ended.reason)
            if ended.is_delivered:
                done.append(ended)
            else:
                self._give_up(ended)
        while self.written:
            done.append(self.written.popleft())
        # only now: after a crash a digest is sent again
        if digests := [one.delivery.key for one in done if one.delivery.key in self._on_way]:
            self._book.forget_digests(digests)
        for one in done:
            self._on_way.discard(one.delivery.key)
            self.open.end(one.delivery.number)

    def tick(self, by: GoingBy) -> None:
        """Make the digests that are due, and send them."""
        now_ms = round(self._clock() * 1000)
        for name in self._book.rules_with_held():
            self._summarise(name, by.rules.summarising(name, now_ms), now_ms)
        for digest in self._book.digests():
            # after a start, all unfinished digests are sent again
            if digest.key not in self._on_way:
                self._send_digest(digest)
        if self._monotonic() >= self._forget_s:
            self._forget_s = self._monotonic() + FORGET_S
            self._book.forget_before(now_ms)

    def _decided(self, message: TakenMessage, by: GoingBy, now_ms: int) -> list[WebhookDelivery]:
        notification = self._read(message)
        if notification is None:
            return []
        if notification.is_stale(now_ms, **self._max_ages_s):
            self._metrics.passed_over.labels("stale").inc()
            return []
        found = routes(notification, by.rules, by.accounts)
        if not found:
            self._metrics.passed_over.labels("no-rule").inc()
        passing = (
            (webhook, tuple(rule.id for rule in rules if self._passes(rule, notification, now_ms)))
            for webhook, rules in sorted(found.items())
        )
        return [
            _delivery(notification, webhook, rules)
            for webhook, passed in passing
            for rules in self._apart(webhook, passed)
            if rules
        ]

    def _apart(self, webhook: str, rules: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        """The rules that may use a webhook, and those that may not, so that an account's rule cannot block another
        account's.
        """
        settings = self._webhooks.get(webhook)
        foreign = () if settings is None else tuple(one for one in rules if settings.foreign_accounts([one]))
        yield tuple(one for one in rules if one not in foreign)
        yield foreign

    def _read(self, message: TakenMessage) -> Notification | None:
        try:
            read = verdict_notification if message.topic.is_verdicts else alert_notification
            notification = read(message.data)
        except MalformedAlert as error:
            self._metrics.passed_over.labels("malformed").inc()
            _LOG.warning("a message is neither an alert nor a verdict", place=message.place, problem=str(error))
            return None
        if notification.tenant != message.topic.tenant:
            self._metrics.passed_over.labels("tenant").inc()
            _LOG.warning("a message names another tenant", place=message.place, tenant=notification.tenant)
            return None
        self._metrics.read.labels("verdict" if notification.is_verdict else "alert").inc()
        return notification

    def _passes(self, rule: AlertRule, notification: Notification, now_ms: int) -> bool:
        about = (notification.tenant, notification.device, notification.kind, notification.place)
        message = HeldBack(notification.key, now_ms, "", *about, notification.t_ms, notification.verdict)
        decision, is_new = self._book.decide(rule, message, now_ms)
        if decision is not PassDecision.SEND and is_new:
            self._metrics.held_back.labels(decision).inc()
        return decision is PassDecision.SEND

    def _begin(self, message: TakenMessage, deliveries: list[WebhookDelivery]) -> None:
        for one in deliveries:
            one.number = next(self._numbers)
        self.open.begin(message, [one.number for one in deliveries])
        for one in deliveries:
            self._send(one)

    def _send(self, delivery: WebhookDelivery) -> None:
        delivery.taken_s = self._monotonic()
        waiting, settings = self._queues.get(delivery.webhook), self._webhooks.get(delivery.webhook)
        if waiting is None or settings is None:
            return self._refuse(delivery, "unknown-webhook", "the settings have no webhook of this name")
        # a rule can name any webhook; the settings say which accounts may
        if others := settings.foreign_accounts(delivery.rules):
            return self._refuse(delivery, "other-account", f"the webhook is not for account {others[0]}")
        # more is kept in Pulsar, not in memory
        if not waiting.add(delivery):
            self._refuse(delivery, "queue-full", f"{MAX_WAITING} messages wait for it already")
        return None

    def _refuse(self, delivery: WebhookDelivery, reason: str, detail: str) -> None:
        delivery.detail = detail
        self._metrics.on_ended(delivery.webhook if delivery.webhook in self._webhooks else UNKNOWN_WEBHOOK, reason)
        self._give_up(EndedDelivery(delivery, reason))

    def _give_up(self, ended: EndedDelivery) -> None:
        _LOG.warning(
            "a message is undelivered",
            webhook=ended.delivery.webhook,
            key=ended.delivery.key,
            reason=ended.reason,
            problem=ended.delivery.detail,
        )
        self._writer.add(ended)

    def _summarise(self, name: str, rule: AlertRule | None, now_ms: int) -> None:
        held, more = self._book.held(name)
        # the rule is gone, or wants no digest any more
        if rule is None or is_digest_due(rule, held, now_ms):
            with self._book.transaction():
                self._book.summarise(name, [] if rule is None else digests_of(rule, held, more))

    def _send_digest(self, digest: Digest) -> None:
        self._on_way.add(digest.key)
        self._metrics.digests.inc()
        self._send(WebhookDelivery(digest.key, digest.webhook, digest.tenant, (digest.rule,), digest.body))


def _delivery(notification: Notification, webhook: str, rules: tuple[str, ...]) -> WebhookDelivery:
    # all of them may use the webhook, or none may: so the named ones decide for all
    named = rules[:MAX_NAMED_RULES]
    body = body_of(notification, named, len(rules) - len(named))
    return WebhookDelivery(notification.key, webhook, notification.tenant, named, body)
