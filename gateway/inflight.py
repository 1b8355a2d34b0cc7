"""Batches that were taken from the broker and are not yet safe, and the order in which the broker is told."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from gateway.admission import Address, Refusal
from telemetry import IntervalSet


@dataclass(slots=True, kw_only=True)
class Delivery:
    """One batch in flight. `token` names it towards Pulsar; `refusal` is set when it goes to the refused ones."""

    token: int
    sender: Address
    payload: bytes
    arrived_s: float
    epoch: int = 0
    accounted: IntervalSet = field(default_factory=IntervalSet)
    records: int = 0
    refusal: Refusal | None = None
    attempts: int = 0


class InFlight:
    """Deliveries by token, and what must be acknowledged to the broker in the order of its coming.

    A batch that comes again while it is in flight (the connection was renewed, or the device was impatient) joins the
    delivery that there is. Message ids are good for one connection only: `renew` forgets them.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._deliveries: dict[int, Delivery] = {}
        self._by_content: dict[tuple[Address, bytes], int] = {}
        self._order: deque[tuple[int, int]] = deque()
        self._done: set[int] = set()
        self._pending_of: dict[Address, int] = {}

    def __len__(self) -> int:
        return len(self._deliveries)

    def __iter__(self) -> Iterator[Delivery]:
        return iter(self._deliveries.values())

    def __contains__(self, token: int) -> bool:
        return token in self._deliveries

    def joins(self, sender: Address, payload: bytes, mid: int) -> bool:
        """Whether the batch is in flight already; then `mid` is released together with it."""
        token = self._by_content.get((sender, payload))
        if token is None:
            return False
        self._order.append((mid, token))
        return True

    def add(self, delivery: Delivery, mid: int) -> None:
        """Take a new delivery."""
        assert delivery.token not in self._deliveries
        self._deliveries[delivery.token] = delivery
        self._by_content[delivery.sender, delivery.payload] = delivery.token
        self._order.append((mid, delivery.token))
        self._pending_of[delivery.sender] = self._pending_of.get(delivery.sender, 0) + 1
        self.bytes += len(delivery.payload)

    def pass_through(self, mid: int, token: int) -> None:
        """A message that is not kept: its id may go when those before it have gone."""
        self._order.append((mid, token))
        self._done.add(token)

    def get(self, token: int) -> Delivery:
        """The delivery of that token."""
        return self._deliveries[token]

    def pending(self, sender: Address) -> int:
        """How many deliveries of a device are not persisted yet."""
        return self._pending_of.get(sender, 0)

    def persisted(self, token: int) -> Delivery:
        """Pulsar has it: it takes no more room, but is not released to the broker yet."""
        delivery = self._deliveries.pop(token)
        del self._by_content[delivery.sender, delivery.payload]
        self.bytes -= len(delivery.payload)
        left = self._pending_of.pop(delivery.sender) - 1
        if left:
            self._pending_of[delivery.sender] = left
        return delivery

    def told(self, token: int) -> None:
        """The device was told of it: its message id may go."""
        self._done.add(token)

    def release(self) -> list[int]:
        """The message ids to acknowledge now, in the order in which the broker sent them (MQTT 5, 4.6)."""
        mids = []
        while self._order and self._order[0][1] in self._done:
            mids.append(self._order.popleft()[0])
        if mids:
            waiting = {token for _, token in self._order}
            self._done &= waiting
        return mids

    def renew(self) -> None:
        """A new connection: the broker sends again what it has no acknowledgement for, with new message ids."""
        self._order.clear()
        self._done.clear()

    @property
    def oldest_s(self) -> float | None:
        """When the delivery that waits longest arrived."""
        return next((delivery.arrived_s for delivery in self._deliveries.values()), None)
