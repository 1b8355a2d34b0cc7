"""What a process that delivers alerts says of itself, and reading it from outside."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, ValidationError
from rich.table import Table
from rich.text import Text

from gateway.errors import NoAnswer
from gateway.webhooks.config import NotifierEndpoint
from runtime.status_reader import StatusUnavailable, fetch_status
from settings import one_line

__all__ = ["NotifierStatus", "WebhookStatus", "notifier_table", "read_notifier_status"]

_TIMEOUT_S = 3.0
_LINE_CHARACTERS = 1000


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
    `last_error`: why it is not. `unwritten`: messages that were given up and are not in Pulsar yet.
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
    rules: int = 0
    rules_current: bool = False
    rules_refused: int = 0
    rule_messages_refused: dict[str, int] = {}
    rule_last_refused: str = ""
    devices: int = 0
    webhooks: tuple[WebhookStatus, ...] = ()


def read_notifier_status(endpoint: NotifierEndpoint) -> NotifierStatus:
    """Ask the process that runs with these settings. Raises NoAnswer."""
    url = f"http://{endpoint.host}:{endpoint.port}/status"
    try:
        found = fetch_status(endpoint.host, endpoint.port, "status", timeout_s=_TIMEOUT_S)
        return NotifierStatus.model_validate(found)
    except (StatusUnavailable, ValidationError) as error:
        raise NoAnswer(
            f"nothing that delivers alerts answers at {url}: {error}; is it running with this file?"
        ) from error


def notifier_table(status: NotifierStatus) -> Table:
    """The status for the terminal."""
    table = Table(title=Text("delivery of alerts"), title_justify="left", show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in status.model_dump(exclude={"webhooks"}).items():
        # Refused texts are of whoever was refused: nothing in them moves a cursor or makes a line.
        table.add_row(name.replace("_", " "), Text(one_line(_words(value), _LINE_CHARACTERS)))
    for one in status.webhooks:
        said = f"waiting {one.waiting}, oldest {one.oldest_s:.0f} s"
        said += f", left alone for {one.paused_s:.0f} s" if one.paused_s else ""
        table.add_row(f"webhook {one.name}", Text(one_line(f"{said}{'; ' if one.problem else ''}{one.problem}", 1000)))
    return table


def _words(value: object) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {count}" for name, count in value.items()) or "none"
    return str(value)
