"""Messages that were read and are not acknowledged: of each, how many of its deliveries have not ended. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.webhooks.intake import TakenMessage

__all__ = ["OpenMessages"]


@dataclass(slots=True)
class _Open:
    message: TakenMessage
    left: int


@dataclass(slots=True)
class OpenMessages:
    """A message is acknowledged once, when all of its deliveries have ended, each of them for good."""

    _open: dict[str, _Open] = field(default_factory=dict)
    _by_delivery: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._open)

    def is_known(self, message: TakenMessage) -> bool:
        """Whether it is open already: after a lost connection it comes again, and is acknowledged as it came last."""
        if (found := self._open.get(message.place)) is None:
            return False
        # an acknowledgement over the lost connection would go nowhere
        found.message = message
        return True

    def begin(self, message: TakenMessage, deliveries: list[int]) -> None:
        """A message with its deliveries, each by a number of its own; without any it is acknowledged at once."""
        # of no account or held back: it is on disk already where that matters
        if not deliveries:
            message.acknowledge()
            return
        self._open[message.place] = _Open(message, len(deliveries))
        self._by_delivery.update(dict.fromkeys(deliveries, message.place))

    def end(self, delivery: int) -> bool:
        """A delivery has ended; whether its message is acknowledged. One of no message, as a digest, is passed over."""
        place = self._by_delivery.pop(delivery, None)
        if place is None:
            return False
        found = self._open[place]
        found.left -= 1
        if not found.left:
            del self._open[place]
            found.message.acknowledge()
        return not found.left
