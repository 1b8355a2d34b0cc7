"""What the drain needs of a way out. Every uplink passes the conformance suite in the tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from waybill.record import Ack, IntervalSet


@dataclass(frozen=True, slots=True)
class OutgoingBatch:
    """A batch to send: its bytes and the record ids that it covers; a heartbeat covers none."""

    epoch: int
    seqs: IntervalSet
    data: bytes


@dataclass(frozen=True, slots=True)
class PushedSettings:
    """Settings that the gateway sent, as TOML text."""

    text: bytes


@dataclass(frozen=True, slots=True)
class RefusedBatch:
    """A batch is not taken; `reason` says why, and `seqs` which records, where it could say."""

    reason: str
    epoch: int = 0
    seqs: IntervalSet = field(default_factory=IntervalSet)


@dataclass(frozen=True, slots=True)
class MalformedControl:
    """A message of the gateway that cannot be read. `source`: what it should have been."""

    source: str
    reason: str


@dataclass(frozen=True, slots=True)
class NoGateway:
    """The broker dropped a batch because nobody subscribes to batches there."""


@dataclass(frozen=True, slots=True)
class HeartbeatAnswered:
    """The oldest heartbeat on its way has its answer: the region's broker has it, or dropped it."""


@dataclass(frozen=True, slots=True)
class CertificateAnswer:
    """What the region answered to a request for a certificate."""

    payload: bytes


UplinkEvent = Ack | CertificateAnswer | PushedSettings | RefusedBatch | MalformedControl | NoGateway | HeartbeatAnswered


class Uplink(Protocol):
    """A connection to one region, used by one thread; only `wake` may be called by others.

    Each method but `close` and `wake` raises LinkError when there is no connection (any more); then the uplink is of no
    further use. An acknowledgement is given only for records that the region has persisted.
    """

    @property
    def region(self) -> str:
        """The region it leads to."""

    def open(self) -> None:
        """Connects, within the connect time-out of its settings."""

    def send(self, batch: OutgoingBatch) -> None:
        """Takes a batch to be sent by the next `poll`s; does not wait for an answer."""

    def report(self, text: bytes) -> None:
        """Publishes what became of settings that the gateway pushed; nothing where nobody listens."""

    def ask_certificate(self, request: bytes) -> None:
        """Asks the region to renew the device's certificate; nothing where nobody does."""

    def poll(self, timeout_s: float) -> list[UplinkEvent]:
        """Sends and receives; returns what came, at the latest after the time-out."""

    def wake(self) -> None:
        """Makes a waiting `poll` return."""

    def wire_bytes(self) -> tuple[int, int]:
        """Bytes (sent, received) on this connection so far, with the protocols' overhead."""

    def close(self) -> None:
        """Ends the connection; never raises."""
