"""One message on its way to one webhook."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

__all__ = ["OUTCOMES", "EndedDelivery", "WebhookDelivery"]

OUTCOMES: Final = (
    "delivered",
    "refused",
    "redirected",
    "exhausted",
    "expired",
    "queue-full",
    "unknown-webhook",
    "other-account",
)
"""How a delivery ends."""


@dataclass(slots=True)
class WebhookDelivery:
    """`key`: the idempotency key. `rules`: by which it goes there. `taken_s`: monotonic clock, when it was read.

    `number`: distinguishes it from all others of the process that follow from messages; -1: it follows from none.
    """

    key: str
    webhook: str
    tenant: str
    rules: tuple[str, ...]
    body: bytes
    taken_s: float = 0.0
    attempts: int = 0
    detail: str = ""
    number: int = -1


class EndedDelivery(NamedTuple):
    """How it ended: `delivered`, or why it was given up."""

    delivery: WebhookDelivery
    reason: str

    @property
    def is_delivered(self) -> bool:
        """Whether the webhook took it."""
        return self.reason == "delivered"
