"""Messages of the device registry: what is an entry, what is none, and what holds of two."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Mapping
from itertools import permutations
from typing import Any

import pulsar
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.inflight import Sender
from gateway.registry_check import judge
from tests.identity.makers import CHANGE, MOMENT, active, published
from tests.waiting import wait_until
from waybill.identity.errors import IdentityError
from waybill.identity.registry import DeviceEntry, DeviceState, revoke, suspend
from waybill.identity.registry_messages import (
    MAX_ENTRY_BYTES,
    DevicePublication,
    EntryRefused,
    devices_topic,
    entry_body,
    read_entry,
)
from waybill.identity.registry_topic import DeviceRegistry, EntryInForce, EntrySuperseded, RegistryReader
from waybill.identity.signatures import ID_PROPERTY
from waybill.pulsar import compacted_topic
from waybill.pulsar.compacted_topic import TopicMessage
from waybill.pulsar.pulsar_client import PulsarAccess
from waybill.record import RefusalReason

NOW_MS = int(MOMENT.timestamp() * 1000)


def message(entry: DeviceEntry, bits: int = 0, key: str | None = None, **more: Any) -> TopicMessage:
    properties = {ID_PROPERTY: published(entry, bits).publication_id}
    return TopicMessage(entry.name if key is None else key, more.get("body", entry_body(entry)), properties, NOW_MS)


def registry(**more: Any) -> DeviceRegistry[DeviceState]:
    return DeviceRegistry(lambda publication, _: publication.entry.state, **more)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "Expecting value"),
        (b"[]", "entry"),
        (b"{" * 100, "deep"),
        (b" " * (MAX_ENTRY_BYTES + 1), "bytes"),
        (json.dumps(json.loads(entry_body(active())) | {"state": "free"}).encode(), "state"),
        (json.dumps(json.loads(entry_body(active())) | {"version": 0}).encode(), "version"),
        (json.dumps(json.loads(entry_body(active())) | {"admin": True}).encode(), "admin"),
        (entry_body(active("zeta")), "its body is of zeta/bus-1"),
    ],
)
def test_what_is_no_entry_is_refused_by_name_and_changes_nothing(body: bytes, why: str) -> None:
    held = registry()
    refused = held.take(message(active(), body=body), None)
    assert isinstance(refused, EntryRefused)
    assert why in str(refused)
    assert (held.refused_by.total(), len(held), held.last_refused) == (1, 0, str(refused))


@given(st.binary(max_size=300), st.dictionaries(st.text(max_size=20), st.text(max_size=20)), st.none() | st.text())
def test_whatever_comes_is_an_entry_or_refused(body: bytes, properties: dict[str, str], key: str | None) -> None:
    with pytest.raises(EntryRefused):
        read_entry(key, body, properties, NOW_MS)


def test_a_publication_of_a_clock_that_is_ahead_of_ours_is_none_and_the_former_entry_holds() -> None:
    held = registry(clock=lambda: NOW_MS / 1000 - 301)
    # By our clock, not by that of the message, which is its publisher's.
    became = held.take(message(active()), None)
    assert isinstance(became, EntryRefused)
    assert (became.reason, held.refused_by) == ("ahead", {"ahead": 1})
    assert isinstance(registry(clock=lambda: NOW_MS / 1000 - 299).take(message(active()), None), EntryInForce)


def test_what_is_not_signed_by_who_may_is_refused() -> None:
    def check(found: DevicePublication, body: bytes, properties: Mapping[str, str]) -> None:
        raise IdentityError(f"nobody signed {found.entry.name}")

    held = registry()
    assert isinstance(held.take(message(active()), check), EntryRefused)
    assert held.last_refused.endswith("nobody signed acme/bus-1")


@pytest.mark.parametrize("order", [*permutations(range(3))])
def test_the_same_publication_holds_in_whichever_order_they_come(order: tuple[int, ...]) -> None:
    start = active()
    messages = [message(start), message(suspend(start, CHANGE), 7), message(revoke(start, CHANGE), 1)]
    held = registry()
    became = [held.take(messages[index], None) for index in order]
    assert held.get("acme/bus-1") is DeviceState.REVOKED
    after = became[order.index(2) + 1 :]
    assert all(isinstance(one, EntrySuperseded) for one in after)
    assert held.outranked == sum(isinstance(one, EntrySuperseded) for one in became)


def test_there_is_room_for_so_many_devices_and_those_above_are_refused_and_counted() -> None:
    held = registry(max_devices=2)
    became = [held.take(message(active("acme", f"bus-{number}")), None) for number in range(4)]
    assert [one.reason for one in became if isinstance(one, EntryRefused)] == ["no-room", "no-room"]
    assert (len(held), held.refused_by) == (2, {"no-room": 2})
    assert held.problem == "2 entries found no room: registry.max_devices is 2"
    held.take(message(revoke(active("acme", "bus-0"), CHANGE)), None)
    assert held.get("acme/bus-0") is DeviceState.REVOKED, "who has a place keeps it"


def test_a_registry_that_is_full_still_locks_devices_out_and_lets_none_of_them_in_for_want_of_room() -> None:
    held = registry(max_devices=2)
    for number in range(2):
        held.take(message(active("acme", f"bus-{number}")), None)
    assert held.problem == ""
    for number in range(2, 4):
        held.take(message(revoke(active("acme", f"bus-{number}"), CHANGE)), None)
    refusal_of = judge(held.get, lambda _: True, refuses_unknown=True)
    reasons = [refusal_of(Sender("acme", f"bus-{number}")) for number in range(5)]
    assert [one and one.reason for one in reasons] == [
        None,
        None,
        RefusalReason.DEVICE_NOT_ACTIVE,
        RefusalReason.DEVICE_NOT_ACTIVE,
        RefusalReason.UNKNOWN_DEVICE,
    ]
    # The reserve has its bound too, and says so.
    assert isinstance(held.take(message(revoke(active("acme", "bus-4"), CHANGE)), None), EntryRefused)
    assert (len(held), held.problem != "") == (4, True)


def test_an_entry_in_the_topic_of_another_tenant_is_none_and_the_one_in_its_own_topic_holds() -> None:
    held = registry()
    held.take(message(active()), None, "acme")
    refused = held.take(message(revoke(active(), CHANGE), 7), None, "zeta")
    assert isinstance(refused, EntryRefused)
    assert (refused.reason, held.refused_by) == ("other-tenant", {"other-tenant": 1})
    assert "it stands in the topic of the tenant zeta" in held.last_refused
    assert held.get("acme/bus-1") is DeviceState.ACTIVE


class Topics:
    """A cluster with a topic of each tenant, of which some are not let be read."""

    def __init__(self, **messages: list[TopicMessage]) -> None:
        self.messages = {devices_topic(tenant): found for tenant, found in messages.items()}
        self.refused: set[str] = set()
        self.clients = 0
        self.begun = Counter[str]()

    def __call__(self, *_: Any, **__: Any) -> Topics:
        self.clients += 1
        return self

    def create_reader(self, topic: str, *_: Any, **__: Any) -> OneTopic:
        if topic in self.refused:
            raise pulsar.AuthorizationError("no")
        self.begun[topic] += 1
        return OneTopic([*self.messages[topic]])

    def close(self) -> None: ...


class OneTopic:
    def __init__(self, left: list[TopicMessage]) -> None:
        self._left = left

    def is_connected(self) -> bool:
        return True

    def has_message_available(self) -> bool:
        return bool(self._left)

    def read_next(self, _: int) -> ReadMessage:
        if not self._left:
            threading.Event().wait(0.01)
            raise pulsar.Timeout
        return ReadMessage(self._left.pop(0))

    def close(self) -> None: ...


class ReadMessage:
    def __init__(self, message: TopicMessage) -> None:
        self._message = message

    def message_id(self) -> int:
        return 1

    def partition_key(self) -> str | None:
        return self._message.key

    def data(self) -> bytes:
        return self._message.body

    def properties(self) -> Mapping[str, str]:
        return self._message.properties

    def publish_timestamp(self) -> int:
        return self._message.published_ms


def test_a_topic_that_cannot_be_read_is_named_and_those_of_other_tenants_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topics = Topics(acme=[message(active())], zeta=[message(active("zeta"))])
    topics.refused.add(devices_topic("acme"))
    monkeypatch.setattr(compacted_topic, "open_pulsar_client", topics)
    reads_again = threading.Event()

    def asked_once() -> bool:
        was_asked = reads_again.is_set()
        reads_again.clear()
        return was_asked

    reader = RegistryReader(
        "pulsar://nowhere",
        PulsarAccess(),
        registry(clock=MOMENT.timestamp),
        tenants=("acme", "zeta"),
        starts_anew=asked_once,
    )
    reader.start()
    wait_until(lambda: reader.was_read("zeta") and reader.standing.refusal is not None, 10)
    assert (reader.is_current("zeta"), reader.was_read("acme"), reader.standing.was_current) == (True, False, False)
    assert reader.standing.problem.startswith("persistent://acme/registry/devices: AuthorizationError")
    assert reader.registry.names("zeta") == {"zeta/bus-1"}
    assert not reader.was_read("stranger"), "while one topic is not read a tenant without one is not judged"
    clients = topics.clients
    topics.refused.clear()
    wait_until(lambda: reader.standing.is_current, 20)
    assert (reader.was_read("stranger"), len(reader.registry), topics.clients) == (True, 2, clients), (
        "one client serves all topics"
    )
    begun = topics.begun.copy()
    reads_again.set()
    wait_until(lambda: all(topics.begun[topic] == count + 1 for topic, count in begun.items()), 10)
    wait_until(lambda: reader.standing.is_current, 10)
    reader.close()
