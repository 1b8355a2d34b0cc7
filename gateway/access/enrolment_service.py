"""The thread that enrols and renews: requests from two brokers to the desk, and what the desk wants done, in order."""

from __future__ import annotations

import random
import select
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

import structlog

from gateway.access.enrolment import EnrolmentDesk, EnrolmentEffect, PublishEntry
from gateway.access.enrolment_door import EnrolmentDoor, EnrolmentWay
from gateway.errors import EntryNotTaken
from waybill.daemon.backoff import Backoff
from waybill.identity.registry import DeviceEntry
from waybill.mqtt.broker_settings import BrokerSettings
from waybill.record import FACTORY_MOUNT, EnrolmentChannel, enrolment_filters

__all__ = ["EnrolmentDoors", "EnrolmentService"]

_TURN_S = 0.2
_READ_BACK_TURN_S = 0.005
"""While something waits to be read back, which takes some milliseconds."""
_CLOSE_S = 3.0
_LOG = structlog.get_logger("access")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrolmentDoors:
    """Where requests come: `claims`, the enrolment broker, as the user of these settings; `devices`, as `name`."""

    name: str
    claims: BrokerSettings
    devices: BrokerSettings


class _Published(NamedTuple):
    way: EnrolmentWay
    entry: DeviceEntry


class EnrolmentService:
    """Handles requests as they come; who waits for the registry to be read back keeps nobody else waiting.

    `publish` returns when Pulsar has the entry, or raises; then it is tried again until `close`. `is_taken` says
    whether the registry was read back with it. Where either raises EntryNotTaken the request is refused.
    """

    def __init__(
        self,
        desk: EnrolmentDesk,
        doors: EnrolmentDoors,
        publish: Callable[[DeviceEntry], None],
        is_taken: Callable[[DeviceEntry], bool] = lambda _: True,
    ) -> None:
        self._desk, self._publish, self._is_taken = desk, publish, is_taken
        # As many as the desk lets be under way.
        self._published: list[_Published] = []
        claims, devices = enrolment_filters(EnrolmentChannel.REQUEST)
        self._doors = (
            EnrolmentDoor(
                doors.claims,
                doors.claims.username or doors.name,
                (claims, f"{FACTORY_MOUNT}{claims}"),
                self._on_request,
            ),
            EnrolmentDoor(doors.devices, doors.name, (devices,), self._on_request),
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
            wait_s = _READ_BACK_TURN_S if self._published else _TURN_S
            if sockets:
                select.select(sockets, writers, [], wait_s)
            else:
                self._stop.wait(wait_s)
            for door in self._doors:
                door.turn(time.monotonic())
            self._answer_taken()
        for door in self._doors:
            door.close()

    def _on_request(self, way: EnrolmentWay, sender: str, payload: bytes) -> None:
        try:
            now, now_s = datetime.now(UTC), time.monotonic()
            effects = self._desk.on_request(sender, payload, now=now, now_s=now_s, is_factory=way.is_factory)
            self._perform(way, effects)
        except Exception as error:  # noqa: BLE001 - one request must not end the enrolment of all others
            _LOG.error("a request for a certificate cannot be handled", sender=sender, problem=repr(error))

    def _perform(self, way: EnrolmentWay, effects: Sequence[EnrolmentEffect]) -> None:
        for effect in effects:
            if not isinstance(effect, PublishEntry):
                way.answer(effect.sender, effect.payload)
                continue
            try:
                if self._is_published(effect.entry):
                    self._published.append(_Published(way, effect.entry))
            except EntryNotTaken as error:
                self._perform(way, self._not_taken(effect.entry, error))

    def _answer_taken(self) -> None:
        waiting, self._published = self._published, []
        for one in waiting:
            try:
                self._perform(one.way, self._read_back(one))
            except Exception as error:  # noqa: BLE001 - see `_on_request`
                _LOG.error("an enrolment cannot be answered", device=one.entry.name, problem=repr(error))

    def _read_back(self, one: _Published) -> list[EnrolmentEffect]:
        entry, now = one.entry, datetime.now(UTC)
        try:
            if not self._is_taken(entry):
                self._published.append(one)
                return []
        except EntryNotTaken as error:
            return self._not_taken(entry, error)
        self.problem = ""
        _LOG.info("certificate given", device=entry.name, by=entry.reason, version=entry.version)
        return self._desk.on_persisted(entry.name, now=now)

    def _not_taken(self, entry: DeviceEntry, error: EntryNotTaken) -> list[EnrolmentEffect]:
        self.problem = str(error)
        _LOG.error("no certificate is given", device=entry.name, problem=self.problem)
        return self._desk.on_not_taken(entry.name, self.problem, now=datetime.now(UTC))

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
                return True
        return False
