"""The gateway without its sockets: events in, effects out. One thread, no clock, no I/O.

    arrived ──▶ Produce ──▶ receipt ──▶ SendAck (to the device) ──▶ PUBACK (to the broker)

No acknowledgement is sent before Pulsar's receipt, and no PUBACK before the acknowledgement. Refused messages go the
same way, to the dead letters instead of the batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import count

from gateway.config import Drain, GatewaySettings, TenantSettings
from gateway.inflight import (
    UNKNOWN_SENDER,
    BatchRules,
    Delivery,
    InFlight,
    Refusal,
    Sender,
    own_header,
    sender_of,
    validate_batch,
)
from gateway.pacing import Pacing
from waybill.daemon.backoff import TokenBucket
from waybill.record import Ack, Header, IntervalSet, RefusalReason
from waybill.record.ack import MAX_ACK_RANGES

# Pending acknowledgements, merged.

MAX_PENDING_RANGES = 262_144
"""Ranges of all devices. Acknowledgements beyond them are dropped, and the device sends again."""


@dataclass(slots=True)
class PendingAcks:
    """One acknowledgement that has waited since `since_s`. `refusal`: why its records are refused; "" if they are
    safe.
    """

    sender: Sender
    epoch: int
    refusal: str
    since_s: float
    seqs: IntervalSet = field(default_factory=IntervalSet)
    pause_s: float = 0.0
    tokens: list[int] = field(default_factory=list)

    @property
    def ack(self) -> Ack:
        return Ack(self.epoch, self.seqs, self.pause_s, self.refusal)


class AckCoalescer:
    """Pending acknowledgements by device, epoch and reason of refusal.

    One is due after `interval_s`, when its device has nothing else in flight, or when it is full.
    """

    def __init__(self, interval_s: float) -> None:
        self.forgotten = 0
        self._interval_s = interval_s
        self._pending: dict[tuple[Sender, int, str], PendingAcks] = {}
        self._full: deque[PendingAcks] = deque()
        self._ranges = 0

    def __len__(self) -> int:
        return len(self._pending) + len(self._full)

    def add(
        self, sender: Sender, epoch: int, seqs: IntervalSet, *, refusal: str = "", token: int, now_s: float
    ) -> bool:
        """Add seqs that are safe or refused. False: there is no room, and no acknowledgement will be sent."""
        if self._ranges + len(seqs.ranges) > MAX_PENDING_RANGES:
            self.forgotten += 1
            return False
        key = sender, epoch, refusal
        for chunk in _chunks(seqs):
            pending = self._make_room(key, len(chunk.ranges), now_s)
            self._ranges -= len(pending.seqs.ranges)
            pending.seqs |= chunk
            self._ranges += len(pending.seqs.ranges)
        pending.tokens.append(token)  # with the last chunk: its PUBACK leaves when all of them were sent
        return True

    def request_pause(self, sender: Sender, epoch: int, pause_s: float, *, refusal: str = "") -> None:
        """Add a pause to the pending acknowledgement; the longest one counts."""
        pending = self._pending.get((sender, epoch, refusal))
        if pending is not None:
            pending.pause_s = max(pending.pause_s, pause_s)

    def take_due(self, now_s: float, in_flight_of: Callable[[Sender], int], limit: int) -> list[PendingAcks]:
        """Take at most `limit` due acknowledgements, the oldest first."""
        taken = [self._full.popleft() for _ in range(min(limit, len(self._full)))]
        ready: list[tuple[Sender, int, str]] = []
        for key, pending in self._pending.items():
            if len(taken) + len(ready) >= limit:
                break
            if now_s - pending.since_s >= self._interval_s or not in_flight_of(pending.sender):
                ready.append(key)
        taken += [self._pending.pop(key) for key in ready]
        self._ranges -= sum(len(pending.seqs.ranges) for pending in taken)
        return taken

    @property
    def next_s(self) -> float | None:
        if self._full:
            return self._full[0].since_s
        # A dict keeps insertion order, so the first one is the oldest.
        return next((pending.since_s + self._interval_s for pending in self._pending.values()), None)

    def _make_room(self, key: tuple[Sender, int, str], ranges: int, now_s: float) -> PendingAcks:
        """The acknowledgement that so many ranges join: the pending one, or a new one if that is full."""
        pending = self._pending.get(key)
        if pending is not None and len(pending.seqs.ranges) + ranges <= MAX_ACK_RANGES:
            return pending
        if pending is not None:
            # `take_due` empties this queue first, so the full one is sent before the new one.
            self._full.append(self._pending.pop(key))
        self._pending[key] = fresh = PendingAcks(*key, now_s)
        return fresh


def _chunks(seqs: IntervalSet) -> Sequence[IntervalSet]:
    """Chunks with as many ranges as one acknowledgement holds; one chunk for the empty set."""
    ranges = seqs.ranges
    if len(ranges) <= MAX_ACK_RANGES:
        return (seqs,)
    starts = range(0, len(ranges), MAX_ACK_RANGES)
    return [IntervalSet(ranges[start : start + MAX_ACK_RANGES]) for start in starts]


# Quota of dead letters by tenant. Pure.

KEPT_PER_S = 10.0
"""Dead letters a second of each tenant in the long run."""
KEPT_AT_ONCE = 200.0
"""Dead letters of each tenant at once. Others are refused and counted without a copy."""


class DeadLetterRates:
    """How many dead letters are kept by tenant. Without `tenants` all share one rate; else unknown tenants have
    none.
    """

    def __init__(self, tenants: Collection[str]) -> None:
        self._tenants = {name: TokenBucket(KEPT_PER_S, KEPT_AT_ONCE) for name in tenants or ("",)}

    def try_take(self, sender: Sender, now_s: float) -> bool:
        tenant = self._tenants.get(sender.tenant) or self._tenants.get("")
        return tenant is not None and tenant.try_take(now_s)


# Pauses of devices: who waits, and for how long.

OVERLOAD_SHARE, OVERLOAD_AFTER_S, OVERLOAD_PAUSE_S = 0.9, 1.0, 5.0
"""Overload: the window is so full and batches wait so long for Pulsar; then devices pause so long, give or take half.
"""


class DrainControl:
    """The pauses of devices, from the operator's setting, the rates and the load. `jitter` gives numbers from 0 to
    1.
    """

    def __init__(self, settings: Drain, tenants: Mapping[str, TenantSettings], jitter: Callable[[], float]) -> None:
        self._settings, self._jitter = settings, jitter
        self._pacing = Pacing(tenants, settings)

    def reconfigure(self, settings: Drain) -> None:
        self._settings = settings
        self._pacing.reconfigure(settings)

    def refusal_s(self, sender: Sender, size: int, now_s: float) -> float:
        """0 if the rates allow a batch of `size` bytes; else the pause before the device sends it again."""
        wait_s = self._pacing.refusal_s(sender, size, now_s)
        return self._spread(wait_s) if wait_s else 0.0

    def overload_s(self) -> float:
        """The pause in an overload. It is spread, because devices with equal pauses come back together."""
        return self._spread(OVERLOAD_PAUSE_S)

    def charge(self, sender: Sender, size: int, records: int, now_s: float) -> None:
        """Charge a batch to the rates of its device, its tenant and the region."""
        self._pacing.charge(sender, size, records, now_s)

    def pause_s(self, sender: Sender, *, load: float, waited_s: float, now_s: float) -> float:
        """The pause of a persisted batch's sender, at most `max_pause_s`.

        `load`: how full the window is, 0 to 1. `waited_s`: how long the batch waited for Pulsar. A full window is an
        overload only if it moves slowly.
        """
        settings = self._settings
        wanted = max(settings.pause_s, self._pacing.pause_s(sender, now_s))
        if load >= OVERLOAD_SHARE and waited_s >= OVERLOAD_AFTER_S:
            wanted = max(wanted, self.overload_s())
        return round(min(wanted, settings.max_pause_s), 3) if wanted else 0.0

    def _spread(self, pause_s: float) -> float:
        return round(min(pause_s * (0.5 + self._jitter()), self._settings.max_pause_s), 3)


# Shares of the window by tenant: stuck tenants leave room for others. Pure.

STUCK_S = 0.5
"""A tenant is stuck if its oldest batch waits this long while another tenant is served."""
RESERVED = 0.5
"""Share of a window that is reserved, equally for each tenant."""
COMMON = 1.5
"""Windows that may be used beyond the reserves."""


class WindowShares:
    """Which tenants are stuck, and how much each tenant may have in flight. Without a list of tenants none is stuck.

    A tenant that is served may fill the window, because its batches leave it quickly. The bytes of each tenant are
    always limited to its share.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        # A stuck tenant keeps half of the window, and all of it where it is the only one.
        self._shares = dict.fromkeys(settings.tenants, 0.5 if len(settings.tenants) > 1 else 1.0)
        self._pulsar_tenant_of = settings.pulsar_tenant_of
        # After a reconnect there may be twice as many batches as the broker sends unacknowledged.
        self._max_batches, self._max_bytes = 2 * settings.mqtt.receive_maximum, settings.mqtt.max_in_flight_bytes
        self._listed = max(1, len(settings.tenants))
        self._reserved_batches = max(1.0, RESERVED * self._max_batches / self._listed)
        self._reserved_bytes = RESERVED * self._max_bytes / self._listed

    def has_room(self, in_flight: InFlight) -> bool:
        """Whether tenants that are not stuck have room for more."""
        batches, size = len(in_flight), in_flight.bytes
        if not in_flight.stuck:
            return size < self._max_bytes and batches < self._max_batches
        stuck, flowing = in_flight.stuck_use, self._listed - len(in_flight.stuck)
        max_batches = max((COMMON * self._max_batches - stuck.batches) / 2, flowing * self._reserved_batches)
        max_bytes = max((COMMON * self._max_bytes - stuck.bytes) / 2, flowing * self._reserved_bytes)
        return size - stuck.bytes < max_bytes and batches - stuck.batches < max_batches

    def is_spent(self, tenant: str, size: int, in_flight: InFlight) -> bool:
        """Whether a tenant may not send a batch of `size` bytes now."""
        share = self._shares.get(tenant, 1.0)
        if not in_flight.stuck:
            return share < 1 and in_flight.use_of(tenant).bytes >= share * self._max_bytes
        use = in_flight.use_of(tenant)
        # One batch is always allowed, because it may be larger than any reserve.
        if not use.batches:
            return False
        is_stuck = tenant in in_flight.stuck
        max_bytes = share * self._max_bytes / (len(in_flight.stuck) if is_stuck else 1)
        max_batches = share * self._max_batches / (2 * len(in_flight.stuck)) if is_stuck else self._max_batches
        if in_flight.bytes + size > COMMON * self._max_bytes:
            max_bytes = 0
        if len(in_flight) >= COMMON * self._max_batches:
            max_batches = 0
        is_over = use.bytes + size > max(max_bytes, self._reserved_bytes)
        return is_over or use.batches >= max(max_batches, self._reserved_batches)

    def find_stuck(self, in_flight: InFlight, now_s: float, connected: Collection[str]) -> None:
        """Find the stuck tenants. If Pulsar takes nothing from anybody, none is stuck."""
        waiting = in_flight.waiting_since(now_s - STUCK_S) & self._shares.keys()
        is_served = any(
            tenant not in waiting and self._pulsar_tenant_of(tenant) in connected for tenant in self._shares
        )
        in_flight.set_stuck(frozenset(waiting) if is_served else frozenset())


KEPT_BYTES = 256 << 10
"""Bytes of a refused message in its dead letter."""
SLOW_DOWN_UNITED_S = 0.5
"""How long `slow-down` answers of a device are combined, because a device may keep sending."""
REFUSED_RECORD_BYTES = 64
"""A refused message counts as one record for this many bytes, because its header is not trusted."""
_BY_SENDER = {
    RefusalReason.BAD_TOPIC,
    RefusalReason.UNKNOWN_TENANT,
    RefusalReason.UNKNOWN_DEVICE,
    RefusalReason.DEVICE_NOT_ACTIVE,
}
"""Refused because of the sender. The content was not read, and the tenant is not charged."""
_TOPIC_KEPT = 1024
_MAX_TEXT = 500


@dataclass(frozen=True, slots=True)
class Produce:
    """Send a delivery to Pulsar: to the dead letters if it is `refused`, else to the batches."""

    token: int
    refused: bool
    key: str
    payload: bytes
    properties: dict[str, str]


class NotSent(Enum):
    JOINED = "the same batch is in flight already, and both are released together"
    NO_ROOM = "it came with QoS 0, which promises nothing, and the window is full"
    SLOW_DOWN = "its tenant or device has had its share for now, and is asked to send it again later"
    NOT_KEPT = "it is refused, and there were too many dead letters lately to keep one more"


@dataclass(frozen=True, slots=True)
class SendAck:
    sender: Sender
    ack: Ack


class Engine:
    """The state of one gateway: deliveries in flight and pending acknowledgements.

    `on_refused(delivery, kept)` is called for each refusal. `kept`: whether there is a dead letter.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        *,
        jitter: Callable[[], float],
        on_refused: Callable[[Delivery, bool], None] = lambda _, __: None,
        refusal_of: Callable[[Sender], Refusal | None] | None = None,
    ) -> None:
        self.in_flight = InFlight()
        self.acks = AckCoalescer(settings.acks.interval_ms / 1000)
        self._slow_downs = AckCoalescer(SLOW_DOWN_UNITED_S)
        self.drain = DrainControl(settings.drain, settings.tenants, jitter)
        self._shares = WindowShares(settings)
        self._on_refused = on_refused
        self._dead_letter_rates = DeadLetterRates(settings.tenants)
        self._region = settings.region
        self._receive_maximum = settings.mqtt.receive_maximum
        self._max_bytes = settings.mqtt.max_in_flight_bytes
        self._rules = BatchRules(
            max_batch_bytes=settings.max_batch_bytes, tenants=frozenset(settings.tenants), refusal_of=refusal_of
        )
        self._tokens = count(1)

    @property
    def has_room(self) -> bool:
        """Whether there is room for more; the broker keeps what is not read."""
        return self._shares.has_room(self.in_flight)

    @property
    def is_idle(self) -> bool:
        return not self.in_flight and not self.acks

    def on_batch(self, topic: str, payload: bytes, mid: int, now_s: float) -> Produce | NotSent:
        """A batch from the broker; `mid` is 0 for QoS 0. If it raises, the state is unchanged."""
        sender = sender_of(topic)
        # First, because a batch in flight was validated when it came.
        if self.in_flight.try_join(sender, payload, mid):
            return NotSent.JOINED
        if not mid and not self._has_room_for_qos_0:
            return NotSent.NO_ROOM
        if pause_s := self._slow_down_s(sender, len(payload), now_s):
            header = own_header(sender, payload)
            if header is not None:
                return self._turn_away(sender, header, mid, pause_s, now_s)
        verdict = validate_batch(self._rules, sender, payload)
        delivery = self._make_delivery(sender, topic, payload, now_s)
        if isinstance(verdict, Refusal):
            # A refusal beyond the share is not charged, because the tenant's other devices would pay for it.
            if not pause_s and verdict.reason not in _BY_SENDER:
                records = max(1, len(payload) // REFUSED_RECORD_BYTES)
                self.drain.charge(sender, len(payload), records, now_s)
            return self._dead_letter(delivery, verdict, mid)
        delivery.records = verdict.record_seqs.count
        _note_header(delivery, verdict)
        effect = self._add(delivery, mid)
        self.drain.charge(sender, len(payload), delivery.records, now_s)
        return effect

    def dead_letter(self, topic: str, payload: bytes, mid: int, refusal: Refusal, now_s: float) -> Produce | NotSent:
        """Refuse a message that could not be handled."""
        return self._dead_letter(self._make_delivery(sender_of(topic), topic, payload, now_s), refusal, mid)

    def listed(self, tenant: str | None) -> str:
        """The tenant's name if the settings have it, else "": senders choose the other names."""
        return tenant if tenant in self._rules.tenants and tenant is not None else ""

    def begin_attempt(self, token: int) -> Produce:
        return self._begin_attempt(self.in_flight.get(token))

    def on_persisted(self, token: int, now_s: float) -> Delivery:
        """Pulsar has the delivery, or a dead letter's attempts are used up: queue the acknowledgement."""
        load = self.load  # before it is removed: the window as this batch met it
        delivery = self.in_flight.remove(token)
        self._queue_ack(delivery, now_s)
        waited_s = now_s - delivery.arrived_s
        pause_s = self.drain.pause_s(delivery.sender, load=load, waited_s=waited_s, now_s=now_s)
        if pause_s:
            self.acks.request_pause(delivery.sender, delivery.epoch, pause_s, refusal=_reason(delivery))
        return delivery

    def refuse(self, token: int, refusal: Refusal, now_s: float) -> Produce | NotSent:
        """Pulsar will never accept this batch: make it a dead letter."""
        delivery = self.in_flight.get(token)
        # The attempts of a dead letter are counted separately.
        delivery.refusal, delivery.attempts = refusal, 0
        if self._try_keep(delivery, now_s):
            return self._begin_attempt(delivery)
        self._queue_ack(self.in_flight.remove(token), now_s)
        return NotSent.NOT_KEPT

    def abandon(self, token: int) -> None:
        """Forget a delivery whose handling failed. Its device gets no answer and sends it again."""
        if token in self.in_flight:
            self.in_flight.remove(token)
        # Released all the same, because PUBACKs leave in order and later ones would wait.
        self.in_flight.mark_acked(token)

    def acknowledge_only(self, mid: int) -> None:
        """Only acknowledge a message to the broker, in its turn."""
        token = next(self._tokens)
        self.in_flight.queue_release(mid, token)
        self.in_flight.mark_acked(token)

    def take_due_acks(self, now_s: float, limit: int) -> list[SendAck]:
        """At most `limit` messages for devices. The caller publishes them, then calls `release`."""
        messages = []
        due = self.acks.take_due(now_s, self.in_flight.pending_of, limit)
        for pending in [*due, *self._slow_downs.take_due(now_s, lambda _: 1, limit - len(due))]:
            messages.append(SendAck(pending.sender, pending.ack))
            for token in pending.tokens:
                self.in_flight.mark_acked(token)
        return messages

    @property
    def next_ack_s(self) -> float | None:
        """When the next message for a device is due at the latest."""
        due = (at_s for at_s in (self.acks.next_s, self._slow_downs.next_s) if at_s is not None)
        return min(due, default=None)

    def release(self) -> list[int]:
        """The message ids to acknowledge to the broker, in order."""
        return self.in_flight.take_released()

    @property
    def stuck(self) -> frozenset[str]:
        """Tenants whose batches Pulsar does not take while it takes others."""
        return self.in_flight.stuck

    def find_stuck(self, now_s: float, connected: Collection[str]) -> None:
        """Find the stuck tenants; to be called about once a second.

        `connected`: the Pulsar tenants whose producers are connected.
        """
        self._shares.find_stuck(self.in_flight, now_s, connected)

    @property
    def load(self) -> float:
        """How full the window towards Pulsar is: 1 is full, and it may be exceeded."""
        return max(len(self.in_flight) / self._receive_maximum, self.in_flight.bytes / self._max_bytes)

    @property
    def _has_room_for_qos_0(self) -> bool:
        """The broker's window does not count QoS 0, so this limit is separate."""
        stuck = self.in_flight.stuck_use
        waiting = len(self.in_flight) - stuck.batches + len(self.acks)
        return waiting < self._receive_maximum and self.in_flight.bytes - stuck.bytes < self._max_bytes / 2

    def _slow_down_s(self, sender: Sender, size: int, now_s: float) -> float:
        """0 if a batch may be taken; else the pause before its device sends it again."""
        if self._rules.tenants and sender.tenant not in self._rules.tenants:
            return 0.0
        if self._shares.is_spent(sender.tenant, size, self.in_flight):
            return self.drain.overload_s()
        return self.drain.refusal_s(sender, size, now_s)

    def _turn_away(self, sender: Sender, header: Header, mid: int, pause_s: float, now_s: float) -> NotSent:
        """Ask the device to send a valid batch again later."""
        token, reason = next(self._tokens), RefusalReason.SLOW_DOWN
        # The PUBACK does not wait for the answer: a device without an answer sends again anyway.
        self.acknowledge_only(mid)
        if self._slow_downs.add(sender, header.epoch, header.seqs, refusal=reason, token=token, now_s=now_s):
            self._slow_downs.request_pause(sender, header.epoch, pause_s, refusal=reason)
        return NotSent.SLOW_DOWN

    def _make_delivery(self, sender: Sender, topic: str, payload: bytes, now_s: float) -> Delivery:
        return Delivery(
            token=next(self._tokens), sender=sender, topic=topic[:_TOPIC_KEPT], payload=payload, arrived_s=now_s
        )

    def _dead_letter(self, delivery: Delivery, refusal: Refusal, mid: int) -> Produce | NotSent:
        delivery.refusal = refusal
        if refusal.header is not None:
            _note_header(delivery, refusal.header)
        is_full = self._shares.is_spent(delivery.sender.tenant, len(delivery.payload), self.in_flight)
        if self._try_keep(delivery, delivery.arrived_s, is_full=is_full):
            return self._add(delivery, mid)
        # Queued first: `mark_acked` ignores a token without a message id, and its PUBACK would never leave.
        self.in_flight.queue_release(mid, delivery.token)
        self._queue_ack(delivery, delivery.arrived_s)
        return NotSent.NOT_KEPT

    def _try_keep(self, delivery: Delivery, now_s: float, *, is_full: bool = False) -> bool:
        """Whether a dead letter is made. `is_full`: the tenant has no room in the window."""
        kept = not is_full and self._dead_letter_rates.try_take(delivery.sender, now_s)
        self._on_refused(delivery, kept)
        return kept

    def _add(self, delivery: Delivery, mid: int) -> Produce:
        effect = self._begin_attempt(delivery)  # may raise: then nothing is in flight, and it becomes a dead letter
        self.in_flight.add(delivery, mid)
        return effect

    def _begin_attempt(self, delivery: Delivery) -> Produce:
        delivery.attempts += 1
        tenant, device = delivery.sender
        about = {"tenant": tenant, "device": device, "region": self._region}
        if delivery.refusal is not None:
            about |= {
                "reason": delivery.refusal.reason,
                "detail": delivery.refusal.detail[:_MAX_TEXT],
                "topic": delivery.topic[:_MAX_TEXT],
                # before it is cut
                "size": str(len(delivery.payload)),
            }
            return Produce(delivery.token, True, device, delivery.payload[:KEPT_BYTES], about)
        about["epoch"] = str(delivery.epoch)
        return Produce(delivery.token, False, device, delivery.payload, about)

    def _queue_ack(self, delivery: Delivery, now_s: float) -> None:
        """Queue the acknowledgement. Without a device or room for it the PUBACK leaves at once.

        A heartbeat has no record to acknowledge; the PUBACK is enough.
        """
        is_queued = not (delivery.sender == UNKNOWN_SENDER or delivery.is_heartbeat) and self.acks.add(
            delivery.sender,
            delivery.epoch,
            delivery.seqs,
            refusal=_reason(delivery),
            token=delivery.token,
            now_s=now_s,
        )
        if not is_queued:
            self.in_flight.mark_acked(delivery.token)


def _reason(delivery: Delivery) -> str:
    return delivery.refusal.reason if delivery.refusal else ""


def _note_header(delivery: Delivery, header: Header) -> None:
    delivery.epoch, delivery.seqs = header.epoch, header.seqs
