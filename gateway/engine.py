"""The gateway without its sockets: events in, effects out. One thread, no clock, no I/O.

    arrived ──▶ Produce ──▶ receipt ──▶ Tell (the device) ──▶ Release (the broker)

Nothing is told before Pulsar's receipt, and nothing is released before the device was told.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from gateway.admission import Address, Refusal, Rules, address_of, judge
from gateway.config import GatewaySettings
from gateway.drain import DrainControl
from gateway.inflight import Delivery, InFlight
from gateway.ledger import Ledger
from telemetry import Ack

REFUSED_BYTES_KEPT = 64 << 10
"""Of a batch that is refused for its size, so much is kept."""


@dataclass(frozen=True, slots=True)
class Produce:
    """Send a delivery to Pulsar: to the refused ones if it is `refused`, else to the batches."""

    token: int
    refused: bool
    key: str
    payload: bytes
    properties: dict[str, str]


@dataclass(frozen=True, slots=True)
class Tell:
    """Publish these acknowledgements to a device."""

    device: Address
    acks: list[Ack]


class Engine:
    """The state of one gateway: what is in flight, and what devices are owed."""

    def __init__(self, settings: GatewaySettings, *, jitter: Callable[[], float], now_s: float) -> None:
        self.in_flight = InFlight()
        self.ledger = Ledger(settings.acks.interval_ms / 1000)
        self.drain = DrainControl(settings.drain, jitter, now_s)
        self._region = settings.region
        self._receive_maximum = settings.mqtt.receive_maximum
        self._max_bytes = settings.mqtt.max_in_flight_bytes
        self._rules = Rules(max_batch_bytes=settings.max_batch_bytes, tenants=frozenset(settings.tenants))
        self._tokens = count(1)

    @property
    def taking(self) -> bool:
        """Whether there is room for more. The broker keeps what is not taken."""
        return self.in_flight.bytes < self._max_bytes and len(self.in_flight) < 2 * self._receive_maximum

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight and nobody is owed anything."""
        return not self.in_flight and not self.ledger

    def arrived(self, topic: str, payload: bytes, mid: int, now_s: float) -> Produce | None:
        """A batch from the broker; None when it joins one that is in flight."""
        sender = address_of(topic)
        if self.in_flight.joins(sender, payload, mid):
            return None
        verdict = judge(self._rules, sender, payload)
        delivery = Delivery(token=next(self._tokens), sender=sender, payload=payload, arrived_s=now_s)
        if isinstance(verdict, Refusal):
            delivery.refusal = verdict
        else:
            delivery.records = verdict.ranges.count
        header = verdict.header if isinstance(verdict, Refusal) else verdict
        if header is not None:
            delivery.epoch, delivery.accounted = header.epoch, header.accounted
        self.in_flight.add(delivery, mid)
        return self.produce(delivery.token)

    def produce(self, token: int) -> Produce:
        """The effect that sends a delivery, for the first time or again."""
        delivery = self.in_flight.get(token)
        delivery.attempts += 1
        properties = {
            "tenant": delivery.sender.tenant,
            "device": delivery.sender.device,
            "region": self._region,
        }
        payload = delivery.payload
        if delivery.refusal is None:
            properties["epoch"] = str(delivery.epoch)
        else:
            properties |= self._refusal_properties(delivery, delivery.refusal)
            if delivery.refusal.reason == "too-large":
                payload = payload[:REFUSED_BYTES_KEPT]
        return Produce(token, delivery.refusal is not None, delivery.sender.device, payload, properties)

    def persisted(self, token: int, now_s: float) -> Delivery:
        """Pulsar's receipt: from now on the device is owed an acknowledgement."""
        load = self.load
        delivery = self.in_flight.persisted(token)
        sender = delivery.sender
        if delivery.refusal is None:
            self.ledger.persisted(sender, delivery.epoch, delivery.accounted, token=token, now_s=now_s)
        else:
            names = (delivery.epoch, delivery.accounted)
            self.ledger.refused(sender, delivery.refusal.reason, *names, token=token, now_s=now_s)
        waited_s = now_s - delivery.arrived_s
        self.ledger.pause(sender, self.drain.pause_s(delivery.records, load=load, waited_s=waited_s, now_s=now_s))
        return delivery

    def refused_by_pulsar(self, token: int, refusal: Refusal) -> Produce:
        """Pulsar will never take it as it is: it goes to the refused ones."""
        self.in_flight.get(token).refusal = refusal
        return self.produce(token)

    def heard(self, mid: int) -> None:
        """A message that needs no more than to be acknowledged to the broker, in its turn."""
        self.in_flight.pass_through(mid, next(self._tokens))

    def due(self, now_s: float, limit: int) -> list[Tell]:
        """What devices are to be told now, at most `limit` of them. The caller publishes, then calls `release`."""
        tells = []
        for device, owed in self.ledger.due(now_s, self.in_flight.pending, limit):
            tells.append(Tell(device, owed.acks()))
            for token in owed.tokens:
                self.in_flight.told(token)
        return tells

    def release(self) -> list[int]:
        """The message ids that may be acknowledged to the broker, in order."""
        return self.in_flight.release()

    @property
    def load(self) -> float:
        """How full the window towards Pulsar is, 0 to 1 and over."""
        return max(len(self.in_flight) / self._receive_maximum, self.in_flight.bytes / self._max_bytes)

    @staticmethod
    def _refusal_properties(delivery: Delivery, refusal: Refusal) -> dict[str, str]:
        sender = delivery.sender
        return {
            "reason": refusal.reason,
            "detail": refusal.detail[:500],
            "topic": f"waybill/1/{sender.tenant}/{sender.device}/batch",
            "size": str(len(delivery.payload)),
        }
