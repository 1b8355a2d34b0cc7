"""What a process that delivers alerts says of itself, and reading it from outside."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict
from rich.table import Table

from gateway.status_answer import facts_table, read_answer
from gateway.webhooks.config import NotifierEndpoint

__all__ = ["NotifierStatus", "WebhookStatus", "notifier_table", "read_notifier_status"]


class WebhookStatus(BaseModel):
    """One webhook: deliveries that have not ended, the age of the oldest, and what is wrong; empty: nothing."""

    model_config = ConfigDict(frozen=True)

    name: str
    waiting: int = 0
    oldest_s: float = 0.0
    paused_s: float = 0.0
    problem: str = ""


class NotifierStatus(BaseModel):
    """One moment. Counts are since `started_at` (ISO 8601).

    `healthy`: rules and accounts are known to their end, every topic is read, and what no webhook took is in Pulsar; a
    webhook that takes nothing is shown beside its name. None: it is a standby, and whether the other process is well,
    it does not know.
    `last_error`: why it is not. `tenants`: whose alerts it delivers. `unwritten`: messages that were given up and are
    not in Pulsar yet. `dropped`: those that cannot be kept there.
    """

    model_config = ConfigDict(frozen=True)

    pid: int
    started_at: str
    state: str = "starting"
    healthy: bool | None = False
    last_error: str = "starting"
    topics: int = 0
    topics_unread: dict[str, str] = {}
    read: dict[str, int] = {}
    passed_over: dict[str, int] = {}
    held_back: dict[str, int] = {}
    digests: int = 0
    deliveries: dict[str, int] = {}
    open_messages: int = 0
    unwritten: int = 0
    topics_unwritten: dict[str, str] = {}
    dropped: int = 0
    rules: int = 0
    rules_current: bool = False
    rules_refused: int = 0
    rule_messages_refused: dict[str, int] = {}
    rule_last_refused: str = ""
    devices: int = 0
    tenants: tuple[str, ...] = ()
    webhooks: tuple[WebhookStatus, ...] = ()


def read_notifier_status(endpoint: NotifierEndpoint) -> NotifierStatus:
    """Ask the process that runs with these settings. Raises NoAnswer."""
    return read_answer(endpoint, "status", NotifierStatus, "nothing that delivers alerts", called="file")


def notifier_table(status: NotifierStatus) -> Table:
    """The status for the terminal."""
    facts = status.model_dump(exclude={"webhooks"}).items()
    rows = [(name.replace("_", " "), value) for name, value in facts]
    webhooks = [(f"webhook {one.name}", _said(one)) for one in status.webhooks]
    return facts_table("delivery of alerts", [*rows, ("delivers to", _delivers_to(status)), *webhooks])


def _delivers_to(status: NotifierStatus) -> str:
    """To whom: a notifier that reads everything is healthy, and delivers to nobody without rules or webhooks."""
    if not status.webhooks:
        return "nobody: the settings have no webhook"
    if status.rules_current and not status.rules:
        return "nobody: no rule was published"
    return ", ".join(one.name for one in status.webhooks)


def _said(webhook: WebhookStatus) -> str:
    paused = f", left alone for {webhook.paused_s:.0f} s" if webhook.paused_s else ""
    said = f"waiting {webhook.waiting}, oldest {webhook.oldest_s:.0f} s{paused}"
    return f"{said}; {webhook.problem}" if webhook.problem else said
