"""When a partition's messages are acknowledged: never before Pulsar's receipts of what follows from them. Pure.

An acknowledgement is cumulative, so a message is acknowledged only when it and every one before it are done.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["AckOrder", "TakenMessages"]

Position = TypeVar("Position")


@dataclass(slots=True, eq=False)
class TakenMessages(Generic[Position]):
    """Messages up to a position, and how many of the alerts that follow from them have no receipt yet."""

    position: Position
    unreceipted: int


class AckOrder(Generic[Position]):
    """What was taken and is not acknowledged, in the order in which it came."""

    def __init__(self) -> None:
        self._taken: deque[TakenMessages[Position]] = deque()
        self.unreceipted = 0

    def __len__(self) -> int:
        return len(self._taken)

    def take(self, position: Position, alerts: int) -> TakenMessages[Position]:
        """Messages up to a position were evaluated, and so many alerts follow from them."""
        assert alerts >= 0
        one = TakenMessages(position, alerts)
        self._taken.append(one)
        self.unreceipted += alerts
        return one

    def on_receipt(self, one: TakenMessages[Position]) -> None:
        """Pulsar has one more of its alerts."""
        assert one.unreceipted > 0, "an alert has two receipts"
        one.unreceipted -= 1
        self.unreceipted -= 1

    def pop_done(self) -> Position | None:
        """The last position up to which everything is done, and was not before; None: there is none."""
        position: Position | None = None
        # only from the front: an acknowledgement is of everything before it, too
        while self._taken and not self._taken[0].unreceipted:
            position = self._taken.popleft().position
        return position
