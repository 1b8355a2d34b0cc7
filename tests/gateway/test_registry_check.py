"""Whether batches of a device are taken: by its state in the registry, once the registry is known."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from gateway.inflight import BatchRules, Refusal, Sender, validate_batch
from gateway.registry_check import judge
from tests.gateway.strategies import batch
from waybill.identity.publication_id import PROPERTY, next_publication_id
from waybill.identity.registry import DeviceEntry, DeviceState
from waybill.identity.registry_messages import entry_body
from waybill.record import Header, RefusalReason

BUS = Sender("acme", "bus-1")
ALL = {f"acme/{state.value}": state for state in DeviceState}


@pytest.mark.parametrize("state", DeviceState)
def test_only_what_is_active_or_expected_is_taken(state: DeviceState) -> None:
    refusal = judge(ALL.get, lambda _: True, refuses_unknown=True)(Sender("acme", state.value))
    if state in {DeviceState.ACTIVE, DeviceState.EXPECTED}:
        assert refusal is None
    else:
        assert refusal == Refusal(RefusalReason.DEVICE_NOT_ACTIVE, f"the registry has it as {state}")


def test_nobody_is_unknown_before_all_are_known_or_where_unknown_devices_are_taken() -> None:
    assert judge(ALL.get, lambda _: False, refuses_unknown=True)(BUS) is None
    assert judge(ALL.get, lambda _: True, refuses_unknown=False)(BUS) is None


def test_a_batch_of_a_device_that_is_not_active_is_refused_whatever_is_in_it() -> None:
    closed = judge({"fleet/d1": DeviceState.SUSPENDED}.get, lambda _: True, refuses_unknown=True)
    rules = BatchRules(max_batch_bytes=1 << 20, refusal_of=closed)
    verdict = validate_batch(rules, Sender("fleet", "d1"), batch("d1", 1, 3))
    assert isinstance(verdict, Refusal)
    assert verdict.reason is RefusalReason.DEVICE_NOT_ACTIVE
    free = BatchRules(max_batch_bytes=1 << 20)
    assert isinstance(validate_batch(free, Sender("fleet", "d1"), batch("d1", 1, 3)), Header)


class Entry:
    """A message of the registry's topic, as a client gives it."""

    def __init__(self, entry: DeviceEntry, at_s: float) -> None:
        self._entry, self._at_ms = entry, int(at_s * 1000)

    def message_id(self) -> int:
        return self._at_ms

    def partition_key(self) -> str:
        return self._entry.name

    def data(self) -> bytes:
        return entry_body(self._entry)

    def properties(self) -> dict[str, str]:
        return {PROPERTY: next_publication_id(None, self._at_ms, 7)}

    def publish_timestamp(self) -> int:
        return self._at_ms


class Cluster:
    """A client and its readers: each begins with all messages."""

    def __init__(self, *messages: Entry) -> None:
        self._all, self._left, self.readers = messages, list[Entry](), 0

    def __call__(self, *_: Any, **__: Any) -> Cluster:
        return self

    def create_reader(self, *_: Any, **__: Any) -> Cluster:
        self._left, self.readers = [*self._all], self.readers + 1
        return self

    def is_connected(self) -> bool:
        return True

    def has_message_available(self) -> bool:
        return bool(self._left)

    def read_next(self, _: int) -> Entry:
        if not self._left:
            import pulsar  # noqa: PLC0415

            threading.Event().wait(0.01)
            raise pulsar.Timeout
        return self._left.pop(0)

    def close(self) -> None:
        pass
