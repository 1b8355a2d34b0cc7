"""What the drain needs of a way out. Every uplink passes the conformance suite in the tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from telemetry import Ack, IntervalSet


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A batch on its way: its bytes and the names it accounts for."""

    epoch: int
    names: IntervalSet
    data: bytes


@dataclass(frozen=True, slots=True)
class Pushed:
    """Settings that the gateway sent, as TOML text."""

    text: bytes


@dataclass(frozen=True, slots=True)
class Refused:
    """The other side will not take a batch; `reason` says why, and the names say which, where it could tell."""

    reason: str
    epoch: int = 0
    names: IntervalSet = field(default_factory=IntervalSet)


@dataclass(frozen=True, slots=True)
class MalformedControl:
    """A message of the gateway that cannot be read. `source`: what it should have been."""

    source: str
    reason: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class NoGateway:
    """The broker dropped a batch because nobody subscribes to batches there."""


UplinkEvent = Ack | Pushed | Refused | MalformedControl | NoGateway


class Uplink(Protocol):
    """A connection to one region, used by one thread; only `wake` may be called by others.

    Each method but `close` and `wake` raises LinkError when there is no connection (any more); then the uplink is of no
    further use. An acknowledgement is given only for names that the region has persisted.
    """

    @property
    def region(self) -> str:
        """The region it leads to."""

    def open(self) -> None:
        """Connects, within the connect time-out of its settings."""

    def send(self, batch: Outgoing) -> None:
        """Takes a batch to be sent by the next `poll`s; does not wait for an answer."""

    def report(self, text: bytes) -> None:
        """Tells the gateway what became of settings it pushed; passed over where nobody listens."""

    def poll(self, timeout_s: float) -> list[UplinkEvent]:
        """Sends and receives; returns what came, at the latest after the time-out."""

    def wake(self) -> None:
        """Makes a waiting `poll` return."""

    def wire_bytes(self) -> tuple[int, int]:
        """Bytes (sent, received) on this connection so far, with the protocols' overhead."""

    def close(self) -> None:
        """Ends the connection; never raises."""
