"""A notifier with real queues and a real file, on a clock that is ours; Pulsar's part is played by lists."""

import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from gateway.webhooks.config import WebhookSettings
from gateway.webhooks.intake import AlertTopic, TakenMessage
from gateway.webhooks.notebook import NotificationBook
from gateway.webhooks.notifier import GoingBy, Notifier
from gateway.webhooks.posting import EndedDelivery, SignedPost, WebhookQueue
from gateway.webhooks.status import WebhookMetrics
from gateway.webhooks.undelivered import UndeliveredWriter
from geo.alerts import encode_alert
from tests.gateway.webhooks.test_routes import EVERYBODY, alert, rules
from tests.waiting import wait_until

TOPIC = AlertTopic("persistent://acme/alerts-eu/alerts", "acme", is_verdicts=False)
NIGHT = {
    "timezone": "UTC",
    "windows": [{"days": ["mon", "tue", "wed", "thu", "fri", "sat", "sun"], "from": "22:00", "until": "06:00"}],
}


def at(clock: str) -> float:
    return datetime.fromisoformat(f"2026-12-01T{clock}+00:00").replace(tzinfo=UTC).timestamp()


class Written(list[EndedDelivery]):
    def add(self, ended: EndedDelivery) -> None:
        self.append(ended)

    @property
    def reasons(self) -> list[str]:
        return [one.reason for one in self]


class World:
    """A notifier, its webhooks, and what was acknowledged; `restart` is a kill and a new start."""

    def __init__(self, folder: Path, webhooks: dict[str, WebhookSettings]) -> None:
        self.folder, self.webhooks = folder, webhooks
        self.now_s, self.passed_s = at("12:00:00"), 0.0
        self.acknowledged: list[str] = []
        self.alert_max_age_s = 1e12
        self.stack = ExitStack()
        self.start()

    def start(self) -> None:
        self.written, self.metrics = Written(), WebhookMetrics(self.webhooks)
        self.book = self.stack.enter_context(NotificationBook(self.folder / "state.sqlite"))
        self.queues = {
            name: WebhookQueue(name, one, SignedPost(one), self._on_ended) for name, one in self.webhooks.items()
        }
        writer = cast("UndeliveredWriter", self.written)
        self.notifier = Notifier(
            self.webhooks,
            self.queues,
            writer,
            self.book,
            self.metrics,
            alert_max_age_s=self.alert_max_age_s,
            late_max_age_s=86_400,
            clock=lambda: self.now_s,
            monotonic=lambda: time.monotonic() + self.passed_s,
        )
        for one in self.queues.values():
            one.start()
            self.stack.callback(one.stop)

    def _on_ended(self, ended: EndedDelivery) -> None:
        self.notifier.ended.append(ended)

    def passes(self, seconds: float) -> None:
        self.now_s, self.passed_s = self.now_s + seconds, self.passed_s + seconds

    def restart(self) -> None:
        self.stack.close()
        self.stack = ExitStack()
        self.start()

    def message(self, number: int, **more: Any) -> TakenMessage:
        data = encode_alert(alert(id=f"{number:024x}", **more))
        return TakenMessage(TOPIC, f"m{number}", data, lambda: self.acknowledged.append(f"m{number}"))

    def take(self, *messages: TakenMessage, book: Any = None) -> None:
        self.notifier.take(messages, GoingBy(book or rules({"id": "acme/all"}), EVERYBODY))

    def settle_until(self, condition: Any) -> None:
        def settled() -> bool:
            self.notifier.settle()
            return bool(condition())

        wait_until(settled)
