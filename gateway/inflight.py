"""Batches that were received and are not yet persisted, and the order of their PUBACKs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

from waybill.record import Header, IntervalSet, RefusalReason, WireError, parse_device_topic, read_header, validate

# Validation of messages by topic, and of batches by header.


class Sender(NamedTuple):
    """The sender of a message, by its topic; the broker checks that a device uses only its own."""

    tenant: str
    device: str


UNKNOWN_SENDER = Sender("", "")
"""The sender of a message on a topic of no device; it gets no acknowledgement."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a batch is refused. `header`: its header, if it is the device's own."""

    reason: RefusalReason
    detail: str
    header: Header | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRules:
    """What this gateway accepts. Empty `tenants`: every tenant that the broker lets in.

    `refusal_of`: what the device registry says against a sender, if there is one.
    """

    max_batch_bytes: int
    tenants: Collection[str] = ()
    refusal_of: Callable[[Sender], Refusal | None] | None = None


def sender_of(topic: str) -> Sender:
    """The sender of a topic; UNKNOWN_SENDER if it is no device's topic."""
    parsed = parse_device_topic(topic)
    return Sender._make(parsed[:2]) if parsed is not None else UNKNOWN_SENDER


def validate_batch(rules: BatchRules, sender: Sender, payload: bytes) -> Header | Refusal:
    """The batch's header if it is of its own device and readable to its last value; else the refusal."""
    if (refusal := _sender_refusal(rules, sender)) is not None:
        return refusal
    # Before `validate`, whose cost grows with the size.
    if len(payload) > rules.max_batch_bytes:
        detail = f"{len(payload)} bytes, at most {rules.max_batch_bytes} are taken"
        return Refusal(RefusalReason.TOO_LARGE, detail, own_header(sender, payload))
    try:
        header = validate(payload, sender.device)
    except WireError as error:
        return Refusal(error.reason, str(error), own_header(sender, payload))
    # The broker checks the topic but not the header, which could name another device.
    if header.device != sender.device:
        return Refusal(RefusalReason.WRONG_DEVICE, f"a batch of {header.device!r} on the topic of {sender.device!r}")
    return header


def _sender_refusal(rules: BatchRules, sender: Sender) -> Refusal | None:
    if sender == UNKNOWN_SENDER:
        return Refusal(RefusalReason.BAD_TOPIC, "its levels are not the names of a tenant and a device")
    if rules.tenants and sender.tenant not in rules.tenants:
        return Refusal(RefusalReason.UNKNOWN_TENANT, f"tenant {sender.tenant!r} is not served here")
    return None if rules.refusal_of is None else rules.refusal_of(sender)


def own_header(sender: Sender, payload: bytes) -> Header | None:
    """The header of a batch if it is of its own device and can be read."""
    try:
        header = read_header(payload)
    except WireError:
        return None
    return header if header.device == sender.device else None


RANGE_BYTES = 128
"""Memory of one range of a batch's header."""
_NO_SEQS = IntervalSet()


@dataclass(slots=True, kw_only=True)
class Delivery:
    """One batch in flight. `token` identifies it towards Pulsar. `refusal`: set for a dead letter."""

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
        """Whether it is a batch without records."""
        return not self.seqs and self.refusal is None

    @property
    def held_bytes(self) -> int:
        """Memory in flight: the payload and its decoded ranges."""
        return len(self.payload) + RANGE_BYTES * len(self.seqs.ranges)


@dataclass(slots=True)
class TenantUse:
    batches: int = 0
    bytes: int = 0

    def count(self, batches: int, held_bytes: int) -> None:
        self.batches += batches
        self.bytes += held_bytes


_NO_USE = TenantUse()


class InFlight:
    """Deliveries by token, and the order of their PUBACKs.

    A batch that comes again while it is in flight joins its first delivery. Message ids are valid for one connection:
    `on_reconnect` forgets them. A message of QoS 0 has id 0 and no PUBACK.
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
        """Whether the batch is in flight already; then `mid` is released with it."""
        # The same bytes have the same record ids, so one copy in Pulsar is enough.
        token = self._by_content.get((sender, payload))
        if token is None:
            return False
        self._await_release(mid, token)
        return True

    def add(self, delivery: Delivery, mid: int) -> None:
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
        """Queue the PUBACK of a message that is not kept; it leaves in its turn, after `mark_acked`."""
        self._await_release(mid, token)

    def get(self, token: int) -> Delivery:
        return self._deliveries[token]

    def pending_of(self, sender: Sender) -> int:
        """How many deliveries of a device are not persisted yet."""
        return self._pending_of.get(sender, 0)

    def remove(self, token: int) -> Delivery:
        """Remove a persisted delivery. Its PUBACK is not released yet."""
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
        """The device has its acknowledgement, so the PUBACK may leave."""
        # A token without message ids (QoS 0, or a lost connection) would never be removed.
        if token in self._ids_of:
            self._done.add(token)

    def use_of(self, tenant: str) -> TenantUse:
        return self._tenants.get(tenant, _NO_USE)

    def waiting_since(self, at_s: float) -> set[str]:
        """The tenants with a delivery that arrived at that time or before."""
        # Deliveries are in the order of arrival.
        old = takewhile(lambda one: one.arrived_s <= at_s, self._deliveries.values())
        return {delivery.sender.tenant for delivery in old}

    def set_stuck(self, tenants: frozenset[str]) -> None:
        self.stuck, uses = tenants, [self.use_of(tenant) for tenant in tenants]
        self.stuck_use = TenantUse(sum(use.batches for use in uses), sum(use.bytes for use in uses))

    def take_released(self) -> list[int]:
        """The message ids to acknowledge now, in the order in which the broker sent them (MQTT 5, 4.6).

        The delivery of a stuck tenant does not block others: its id is released while it stays in flight. If it is
        lost, its device, which has no acknowledgement, sends it again.
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
        """Forget the message ids of the old connection."""
        self._order.clear()
        self._ids_of.clear()
        self._done.clear()

    @property
    def oldest_s(self) -> float | None:
        """When the oldest delivery arrived."""
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
