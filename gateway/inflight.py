"""Batches that were taken from the broker and are not yet safe, and the order of their PUBACKs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

from waybill.record import Header, IntervalSet, RefusalReason, WireError, parse_device_topic, read_header, validate

# Validation of messages by topic, and of batches by header.


class Sender(NamedTuple):
    """Who sent a message, by the topic that the broker let it publish on."""

    tenant: str
    device: str


UNKNOWN_SENDER = Sender("", "")
"""The sender of a message whose topic no device can have: no acknowledgement is sent."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a batch does not pass, and the sentence for people. `header`: if it is the device's."""

    reason: RefusalReason
    detail: str
    header: Header | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRules:
    """What this gateway accepts. No `tenants` means every tenant that the broker lets in.

    `refusal_of`: what the device registry says against a sender, if it is asked.
    """

    max_batch_bytes: int
    tenants: Collection[str] = ()
    refusal_of: Callable[[Sender], Refusal | None] | None = None


def sender_of(topic: str) -> Sender:
    """The sender of a message on this topic; UNKNOWN_SENDER when it is not the topic of a device."""
    parsed = parse_device_topic(topic)
    return Sender._make(parsed[:2]) if parsed is not None else UNKNOWN_SENDER


def validate_batch(rules: BatchRules, sender: Sender, payload: bytes) -> Header | Refusal:
    """The batch's header if it may pass: its own device's, and readable at the centre to its last value."""
    if (refusal := _sender_refusal(rules, sender)) is not None:
        return refusal
    # Before `validate`, whose work grows with the bytes.
    if len(payload) > rules.max_batch_bytes:
        detail = f"{len(payload)} bytes, at most {rules.max_batch_bytes} are taken"
        return Refusal(RefusalReason.TOO_LARGE, detail, own_header(sender, payload))
    try:
        header = validate(payload, sender.device)
    except WireError as error:
        return Refusal(error.reason, str(error), own_header(sender, payload))
    # The broker vouches for the topic, nobody for the header: it could write another device's records.
    if header.device != sender.device:
        return Refusal(RefusalReason.WRONG_DEVICE, f"a batch of {header.device!r} on the topic of {sender.device!r}")
    return header


def _sender_refusal(rules: BatchRules, sender: Sender) -> Refusal | None:
    """Why nothing of a sender is taken."""
    if sender == UNKNOWN_SENDER:
        return Refusal(RefusalReason.BAD_TOPIC, "its levels are not the names of a tenant and a device")
    if rules.tenants and sender.tenant not in rules.tenants:
        return Refusal(RefusalReason.UNKNOWN_TENANT, f"tenant {sender.tenant!r} is not served here")
    return None if rules.refusal_of is None else rules.refusal_of(sender)


def own_header(sender: Sender, payload: bytes) -> Header | None:
    """What a batch says of itself, for its own device; None if it says nothing that can be relied on."""
    try:
        header = read_header(payload)
    except WireError:
        return None
    return header if header.device == sender.device else None


RANGE_BYTES = 128
"""What one range of a batch's header takes in memory."""
_NO_SEQS = IntervalSet()


@dataclass(slots=True, kw_only=True)
class Delivery:
    """One batch in flight. `token` names it towards Pulsar; `refusal` is set when it goes to the dead letters."""

    token: int
    sender: Sender
    topic: str
    payload: bytes
    arrived_s: float
    epoch: int = 0
    seqs: IntervalSet = _NO_SEQS
    records: int = 0
    refusal: Refusal | None = None
    attempts: int = 0

    @property
    def is_heartbeat(self) -> bool:
        """Whether it is a batch that accounts for no record."""
        return not self.seqs and self.refusal is None

    @property
    def held_bytes(self) -> int:
        """What it takes in memory while it is in flight: its bytes, and its ranges taken apart."""
        return len(self.payload) + RANGE_BYTES * len(self.seqs.ranges)


@dataclass(slots=True)
class TenantUse:
    """What one tenant has in flight."""

    batches: int = 0
    bytes: int = 0

    def count(self, batches: int, held_bytes: int) -> None:
        """So much more; below zero: less."""
        self.batches += batches
        self.bytes += held_bytes


_NO_USE = TenantUse()


class InFlight:
    """Deliveries by token, and what must be acknowledged to the broker in the order of its coming.

    A batch that comes again while it is in flight (the connection was renewed, or the device was impatient) joins the
    delivery that there is. Message ids hold for one connection only: `on_reconnect` forgets them. A message of QoS 0
    has id 0, and no PUBACK.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._deliveries: dict[int, Delivery] = {}
        self._by_content: dict[tuple[Sender, bytes], int] = {}
        self._order: deque[tuple[int, int]] = deque()
        self._ids_of: dict[int, int] = {}
        self._done: set[int] = set()
        self._pending_of: dict[Sender, int] = {}
        self._tenants: dict[str, TenantUse] = {}
        self.stuck: frozenset[str] = frozenset()
        self.stuck_use = TenantUse()
        """What the tenants that are `stuck` have in flight, in sum."""

    def __len__(self) -> int:
        return len(self._deliveries)

    def __iter__(self) -> Iterator[Delivery]:
        return iter(self._deliveries.values())

    def __contains__(self, token: int) -> bool:
        return token in self._deliveries

    def try_join(self, sender: Sender, payload: bytes, mid: int) -> bool:
        """Whether the batch is in flight already; then `mid` is released together with it."""
        # The same bytes hold the same record ids: one copy in Pulsar is enough for both.
        token = self._by_content.get((sender, payload))
        if token is None:
            return False
        self._await_release(mid, token)
        return True

    def add(self, delivery: Delivery, mid: int) -> None:
        """Take a new delivery."""
        assert delivery.token not in self._deliveries
        self._deliveries[delivery.token] = delivery
        self._by_content[delivery.sender, delivery.payload] = delivery.token
        self._await_release(mid, delivery.token)
        self._pending_of[delivery.sender] = self._pending_of.get(delivery.sender, 0) + 1
        held_bytes = delivery.held_bytes
        self.bytes += held_bytes
        tenant = delivery.sender.tenant
        if tenant not in self._tenants:
            self._tenants[tenant] = TenantUse()
        self._count(tenant, 1, held_bytes)

    def queue_release(self, mid: int, token: int) -> None:
        """A message that is not kept: its PUBACK leaves in its turn, after `mark_acked`."""
        self._await_release(mid, token)

    def get(self, token: int) -> Delivery:
        """The delivery of that token."""
        return self._deliveries[token]

    def pending_of(self, sender: Sender) -> int:
        """How many deliveries of a device are not persisted yet."""
        return self._pending_of.get(sender, 0)

    def remove(self, token: int) -> Delivery:
        """Pulsar has it: it takes no more room, but is not released to the broker yet."""
        delivery = self._deliveries.pop(token)
        del self._by_content[delivery.sender, delivery.payload]
        held_bytes = delivery.held_bytes
        self.bytes -= held_bytes
        tenant = delivery.sender.tenant
        self._count(tenant, -1, -held_bytes)
        if not self._tenants[tenant].batches:
            del self._tenants[tenant]
        left = self._pending_of.pop(delivery.sender) - 1
        if left:
            self._pending_of[delivery.sender] = left
        return delivery

    def mark_acked(self, token: int) -> None:
        """The device has its acknowledgement: the PUBACK may leave."""
        # A token without message ids is of QoS 0, or of a connection that is gone: nothing would ever remove it.
        if token in self._ids_of:
            self._done.add(token)

    def use_of(self, tenant: str) -> TenantUse:
        """What a tenant has in flight."""
        return self._tenants.get(tenant, _NO_USE)

    def waiting_since(self, at_s: float) -> set[str]:
        """The tenants of which a delivery arrived at that time or before."""
        # in the order of their coming
        old = takewhile(lambda one: one.arrived_s <= at_s, self._deliveries.values())
        return {delivery.sender.tenant for delivery in old}

    def set_stuck(self, tenants: frozenset[str]) -> None:
        """From here on these are the stuck tenants."""
        self.stuck, uses = tenants, [self.use_of(tenant) for tenant in tenants]
        self.stuck_use = TenantUse(sum(use.batches for use in uses), sum(use.bytes for use in uses))

    def take_released(self) -> list[int]:
        """The message ids to acknowledge now, in the order in which the broker sent them (MQTT 5, 4.6).

        A delivery of a tenant that is stuck holds up none behind it: it stays in flight, and its id is released. If
        it is lost then, its device, which has no acknowledgement, sends it again.
        """
        mids = []
        while self._order and (self._order[0][1] in self._done or self._is_stuck(self._order[0][1])):
            mid, token = self._order.popleft()
            mids.append(mid)
            self._ids_of[token] -= 1
            if not self._ids_of[token]:
                del self._ids_of[token]
                self._done.discard(token)
        return mids

    def on_reconnect(self) -> None:
        """A new connection: its message ids are others."""
        self._order.clear()
        self._ids_of.clear()
        self._done.clear()

    @property
    def oldest_s(self) -> float | None:
        """When the delivery that waits longest arrived."""
        return next((delivery.arrived_s for delivery in self._deliveries.values()), None)

    def _is_stuck(self, token: int) -> bool:
        return bool(self.stuck) and token in self._deliveries and self._deliveries[token].sender.tenant in self.stuck

    def _count(self, tenant: str, batches: int, held_bytes: int) -> None:
        self._tenants[tenant].count(batches, held_bytes)
        if tenant in self.stuck:
            self.stuck_use.count(batches, held_bytes)

    def _await_release(self, mid: int, token: int) -> None:
        if mid:
            self._order.append((mid, token))
            self._ids_of[token] = self._ids_of.get(token, 0) + 1
