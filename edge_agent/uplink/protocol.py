"""What the drain needs of an uplink."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from waybill.record import Ack, IntervalSet


@dataclass(frozen=True, slots=True)
class OutgoingBatch:
    """A batch to send and the record ids that it covers; a heartbeat covers none."""

    epoch: int
    seqs: IntervalSet
    data: bytes


@dataclass(frozen=True, slots=True)
class PushedSettings:
    """Settings that the gateway sent, as TOML text."""

    text: bytes


@dataclass(frozen=True, slots=True)
class RefusedBatch:
    """A refused batch. `seqs`: the refused records, if known."""

    reason: str
    epoch: int = 0
    seqs: IntervalSet = field(default_factory=IntervalSet)


@dataclass(frozen=True, slots=True)
class MalformedControl:
    """An unreadable message of the gateway. `source`: the channel that it came on."""

    source: str
    reason: str


@dataclass(frozen=True, slots=True)
class NoGateway:
    """The broker dropped a batch because nobody subscribes to batches there."""


@dataclass(frozen=True, slots=True)
class HeartbeatAnswered:
    """The broker answered the oldest heartbeat in flight: it has the heartbeat or dropped it."""


@dataclass(frozen=True, slots=True)
class CertificateAnswer:
    payload: bytes


UplinkEvent = Ack | CertificateAnswer | PushedSettings | RefusedBatch | MalformedControl | NoGateway | HeartbeatAnswered


class Uplink(Protocol):
    """A connection to one region, used by one thread; other threads may only call `wake`.

    Each method but `close` and `wake` raises LinkError without a connection; then the uplink cannot be used any more.
    Only records that the region has persisted are acknowledged.
    """

    @property
    def region(self) -> str:
        """The region it leads to."""

    def open(self) -> None:
        """Connects within the connect timeout."""

    def send(self, batch: OutgoingBatch) -> None:
        """Queues a batch for the next `poll`s."""

    def report(self, text: bytes) -> None:
        """Publishes the outcome of pushed settings."""

    def ask_certificate(self, request: bytes) -> None:
        """Asks the region to renew the device's certificate."""

    def poll(self, timeout_s: float) -> list[UplinkEvent]:
        """Sends and receives; returns the received events, at the latest after the timeout."""

    def wake(self) -> None:
        """Ends a waiting `poll`."""

    def wire_bytes(self) -> tuple[int, int]:
        """Bytes (sent, received) on this connection, with the protocols' overhead."""

    def close(self) -> None:
        """Ends the connection; never raises."""
