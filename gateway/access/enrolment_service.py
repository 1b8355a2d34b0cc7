"""The thread that enrols and renews: requests from two brokers to the desk, and what the desk wants done, in order."""

from __future__ import annotations

import random
import select
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog

from gateway.access.enrolment import EnrolmentDesk, EnrolmentEffect, PublishEntry
from gateway.access.enrolment_door import EnrolmentDoor
from gateway.errors import EntryNotTaken
from identity.registry import DeviceEntry
from runtime.backoff import Backoff
from runtime.broker_settings import BrokerSettings
from telemetry import EnrolmentChannel, enrolment_filters

__all__ = ["EnrolmentDoors", "EnrolmentService"]

_TURN_S = 0.2
_CLOSE_S = 3.0
_LOG = structlog.get_logger("access")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrolmentDoors:
    """Where requests come: `claims`, the enrolment broker, as the user of these settings; `devices`, as `name`."""

    name: str
    claims: BrokerSettings
    devices: BrokerSettings


class EnrolmentService:
    """Handles one request after the other: the next one is looked at when the registry has what the last one changed.

    `publish` returns when the registry was read back with the entry, or raises; then it is tried again until `close`.
    After EntryNotTaken the request is refused instead.
    """

    def __init__(self, desk: EnrolmentDesk, doors: EnrolmentDoors, publish: Callable[[DeviceEntry], None]) -> None:
        self._desk, self._publish = desk, publish
        claims, devices = enrolment_filters(EnrolmentChannel.REQUEST)
        self._doors = (
            EnrolmentDoor(doors.claims, doors.claims.username or doors.name, claims, self._on_request),
            EnrolmentDoor(doors.devices, doors.name, devices, self._on_request),
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="enrolment", daemon=True)
        self.problem = ""
        """Why the registry does not take what was enrolled; "" while it does."""

    def start(self) -> None:
        """Begin. The registry must have been read to its end: what was enrolled before has to be known."""
        self._thread.start()

    def close(self) -> None:
        """End; who waits for an answer asks again."""
        self._stop.set()
        self._thread.join(_CLOSE_S)

    @property
    def is_running(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    @property
    def problems(self) -> list[str]:
        """What is wrong now."""
        return [problem for problem in (self.problem, *(door.problem for door in self._doors)) if problem]

    def _run(self) -> None:
        while not self._stop.is_set():
            sockets = [door.socket for door in self._doors if door.socket is not None]
            writers = [door.socket for door in self._doors if door.socket is not None and door.wants_write]
            # Both at once: neither broker has to wait for the other one's silence.
            if sockets:
                select.select(sockets, writers, [], _TURN_S)
            else:
                self._stop.wait(_TURN_S)
            for door in self._doors:
                door.turn(time.monotonic())
        for door in self._doors:
            door.close()

    def _on_request(self, door: EnrolmentDoor, sender: str, payload: bytes) -> None:
        try:
            effects = self._desk.on_request(sender, payload, now=datetime.now(UTC), now_s=time.monotonic())
            self._perform(door, effects)
        except Exception as error:  # noqa: BLE001 - one request must not end the enrolment of all others
            _LOG.error("a request for a certificate cannot be handled", sender=sender, problem=repr(error))

    def _perform(self, door: EnrolmentDoor, effects: Sequence[EnrolmentEffect]) -> None:
        for effect in effects:
            if not isinstance(effect, PublishEntry):
                door.answer(effect.sender, effect.payload)
            else:
                self._perform(door, self._published(effect.entry))

    def _published(self, entry: DeviceEntry) -> list[EnrolmentEffect]:
        try:
            is_published = self._is_published(entry)
        except EntryNotTaken as error:
            self.problem = str(error)
            _LOG.error("no certificate is given", device=entry.name, problem=self.problem)
            return self._desk.on_not_taken(entry.name, now=datetime.now(UTC))
        return self._desk.on_persisted(entry.name, now=datetime.now(UTC)) if is_published else []

    def _is_published(self, entry: DeviceEntry) -> bool:
        backoff = Backoff(0.2, 10.0, random.random)
        while not self._stop.is_set():
            try:
                self._publish(entry)
            except EntryNotTaken:
                raise
            except Exception as error:  # noqa: BLE001 - Pulsar's client raises many kinds; none of them is final
                self.problem = f"the registry does not take {entry.name}: {error}"
                _LOG.warning("an enrolment waits for the registry", device=entry.name, problem=str(error))
                self._stop.wait(backoff.take_delay_s())
            else:
                self.problem = ""
                _LOG.info("certificate given", device=entry.name, by=entry.reason, version=entry.version)
                return True
        return False
