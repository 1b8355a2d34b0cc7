"""Whether batches of a device are taken: by its state in the registry, once the registry is known."""

from __future__ import annotations

import pytest

from gateway.registry_check import judge
from gateway.validation import BatchRules, Refusal, Sender, validate_batch
from identity.registry import DeviceState
from telemetry import Header, RefusalReason
from tests.gateway.strategies import batch

BUS = Sender("acme", "bus-1")
ALL = {f"acme/{state.value}": state for state in DeviceState}


@pytest.mark.parametrize("state", DeviceState)
def test_only_what_is_active_or_expected_is_taken(state: DeviceState) -> None:
    refusal = judge(ALL.get, lambda: True, refuses_unknown=True)(Sender("acme", state.value))
    if state in {DeviceState.ACTIVE, DeviceState.EXPECTED}:
        assert refusal is None
    else:
        assert refusal == Refusal(RefusalReason.DEVICE_NOT_ACTIVE, f"the registry has it as {state}")


def test_a_device_of_another_tenant_is_another_device() -> None:
    refusal = judge(ALL.get, lambda: True, refuses_unknown=True)(Sender("zeta", "active"))
    assert refusal is not None
    assert refusal.reason is RefusalReason.UNKNOWN_DEVICE


def test_nobody_is_unknown_before_all_are_known_or_where_unknown_devices_are_taken() -> None:
    assert judge(ALL.get, lambda: False, refuses_unknown=True)(BUS) is None
    assert judge(ALL.get, lambda: True, refuses_unknown=False)(BUS) is None


def test_a_batch_of_a_device_that_is_not_active_is_refused_whatever_is_in_it() -> None:
    closed = judge({"fleet/d1": DeviceState.SUSPENDED}.get, lambda: True, refuses_unknown=True)
    rules = BatchRules(max_batch_bytes=1 << 20, refusal_of=closed)
    verdict = validate_batch(rules, Sender("fleet", "d1"), batch("d1", 1, 3))
    assert isinstance(verdict, Refusal)
    assert verdict.reason is RefusalReason.DEVICE_NOT_ACTIVE
    free = BatchRules(max_batch_bytes=1 << 20)
    assert isinstance(validate_batch(free, Sender("fleet", "d1"), batch("d1", 1, 3)), Header)
