"""What is enrolled is read back before it is given, and who waits for that keeps nobody else waiting."""

import threading
from collections.abc import Callable
from typing import Any, cast
from unittest.mock import create_autospec

import pytest

from gateway.access.enrolment import EnrolmentCore, PublishEntry, SendAnswer
from gateway.access.enrolment_service import READ_BACK_S, EnrolmentPublisher, EnrolmentService
from gateway.errors import EntryNotTaken
from tests.gateway.access.known_devices import KnownDevices
from tests.identity.makers import CERTIFICATE, CHANGE, expected
from tests.waiting import wait_until
from waybill.identity.registry import DeviceEntry, enrol
from waybill.identity.registry_topic import RegistryPublisher, RegistryRefused
from waybill.mqtt.broker_settings import BrokerSettings

ENTRY = enrol(expected(), CERTIFICATE, CHANGE)
DOORS: Any = {"name": "devices", "claims": BrokerSettings(username="claims"), "devices": BrokerSettings()}


class Registry:
    """A registry whose reader is the test; `now_s` is the monotonic clock."""

    def __init__(self, on_sent: Callable[[str], None] = lambda _: None) -> None:
        self.now_s, self.book, self.number = 0.0, KnownDevices(), 0
        self._on_sent = on_sent
        sender = create_autospec(RegistryPublisher, instance=True, newest=None)
        sender.publish.side_effect = self._send
        self.sender = sender
        self.publisher = EnrolmentPublisher(sender, cast("Any", self.book), lambda: self.now_s)

    def _send(self, _: DeviceEntry, __: str) -> str:
        self.number += 1
        self.sender.newest = f"id {self.number}"
        self._on_sent(self.sender.newest)
        return str(self.sender.newest)


def test_an_entry_counts_when_it_was_read_back() -> None:
    registry = Registry()
    registry.publisher.publish(ENTRY)
    assert not registry.publisher.is_taken(ENTRY)
    registry.book.put(ENTRY)
    assert registry.publisher.is_taken(ENTRY)


def test_an_entry_that_is_not_read_back_is_given_up() -> None:
    registry = Registry()
    registry.publisher.publish(ENTRY)
    registry.now_s += READ_BACK_S
    with pytest.raises(EntryNotTaken, match="not read back within 10 s"):
        registry.publisher.is_taken(ENTRY)


class Door:
    """Where requests come without a broker: these senders ask once each."""

    asks: tuple[str, ...] = ()
    socket, wants_write, problem = None, False, ""

    def __init__(
        self, _: Any, name: str, __: tuple[str, ...], on_request: Callable[[Any, str, bytes, bool], None]
    ) -> None:
        self._on_request = on_request
        self._left = [*self.asks] if name == "claims" else []
        self.answered: list[str] = []

    def turn(self, _: float) -> None:
        while self._left:
            self._on_request(self.answer, self._left.pop(0), b"", False)

    def answer(self, sender: str, _: bytes) -> None:
        ANSWERED.append(sender)

    def close(self) -> None:
        pass


ANSWERED: list[str] = []


def test_who_is_not_read_back_keeps_nobody_else_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {device: enrol(expected(device=device), CERTIFICATE, CHANGE) for device in ("stuck", "bus-1", "bus-2")}
    names = {entry.name: entry for entry in entries.values()}
    desk = create_autospec(EnrolmentCore, instance=True)
    desk.on_request.side_effect = lambda sender, *_, **__: [PublishEntry(names[sender])]
    desk.on_persisted.side_effect = lambda name, **_: [SendAnswer(name, b"granted")]
    monkeypatch.setattr("gateway.access.enrolment_service.EnrolmentConnection", Door)
    monkeypatch.setattr(Door, "asks", tuple(names))
    ANSWERED.clear()
    is_released = threading.Event()
    stuck = entries["stuck"].name
    service = EnrolmentService(desk, lambda _: None, lambda one: one.name != stuck or is_released.is_set(), **DOORS)
    service.start()
    try:
        wait_until(lambda: len(ANSWERED) == 2, 10)
        assert stuck not in ANSWERED
        is_released.set()
        wait_until(lambda: stuck in ANSWERED, 10)
    finally:
        service.close()


def test_a_tenant_whose_topic_takes_nothing_is_refused_and_keeps_nobody_else_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stuck, other = (enrol(expected(device=device), CERTIFICATE, CHANGE) for device in ("stuck", "bus-1"))
    names = {entry.name: entry for entry in (stuck, other)}
    desk = create_autospec(EnrolmentCore, instance=True)
    desk.on_request.side_effect = lambda sender, *_, **__: [PublishEntry(names[sender])]
    desk.on_persisted.side_effect = lambda name, **_: [SendAnswer(name, b"granted")]
    desk.on_not_taken.side_effect = lambda name, why, **_: [SendAnswer(f"{name}: {why}", b"refused")]
    monkeypatch.setattr("gateway.access.enrolment_service.EnrolmentConnection", Door)
    monkeypatch.setattr(Door, "asks", tuple(names))
    ANSWERED.clear()
    registry = Registry()
    sends = registry.sender.publish.side_effect

    def publish(entry: DeviceEntry, warrant: str) -> str:
        if entry is stuck:
            raise RegistryRefused("held")
        sent: str = sends(entry, warrant)
        registry.book.put(entry)
        return sent

    registry.sender.publish.side_effect = publish
    service = EnrolmentService(desk, registry.publisher.publish, registry.publisher.is_taken, **DOORS)
    service.start()
    try:
        wait_until(lambda: len(ANSWERED) == 2, 10)
    finally:
        service.close()
    assert [*ANSWERED] == [f"{stuck.name}: held", other.name]
