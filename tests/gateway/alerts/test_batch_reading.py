"""From a message to fixes: what gives none is passed over with a reason, whatever its bytes are."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from gateway.alerts.batch_reading import PassedOver, read_fixes
from gateway.alerts.live_fixes import BatchFixes, LiveFixes
from identity import Sealer, Unsealer
from telemetry import Batch, Canary, Position, Record, encode

NOW_MS = 1_767_603_422_000
ACME = frozenset({"acme"})
DAY_MS = 86_400_000


def batch(*times_ms: int, device: str = "d-1") -> bytes:
    records = [
        Record(seq, t_ms * 1000 + 999, Position(latitude=50.0, longitude=8.0, speed_mps=3.0))
        for seq, t_ms in enumerate(times_ms, 1)
    ]
    last = Record(len(times_ms) + 1, NOW_MS * 1000, Canary(id="c"))
    return encode(Batch(device, 7, len(times_ms) + 1, (*records, last)))


def read(payload: bytes, tenant: str = "acme", region: str = "eu", unsealer: Unsealer | None = None) -> BatchFixes:
    said = {"tenant": tenant, "region": region}
    return read_fixes(payload, said, received_ms=NOW_MS, tenants=ACME, unsealer=unsealer or Unsealer())


def test_positions_are_fixes_and_what_is_far_off_is_none() -> None:
    found = read(batch(NOW_MS - 1000, NOW_MS, NOW_MS + 2 * DAY_MS, NOW_MS - 500 * DAY_MS))
    assert (found.tenant, found.device, found.epoch) == ("acme", "d-1", 7)
    assert found.seq.tolist() == [1, 2]
    assert found.t_ms.tolist() == [NOW_MS - 1000, NOW_MS]
    assert found.speed_mps.tolist() == [3.0, 3.0]


def test_a_batch_of_another_tenant_and_one_of_none_are_passed_over() -> None:
    for said in ({"tenant": "other"}, {}):
        with pytest.raises(PassedOver) as passed:
            read_fixes(batch(NOW_MS), said, received_ms=NOW_MS, tenants=ACME, unsealer=Unsealer())
        assert passed.value.reason == "tenant"


@given(st.binary(max_size=300))
def test_any_bytes_are_passed_over_and_nothing_else_is_raised(payload: bytes) -> None:
    with pytest.raises(PassedOver):
        read(payload)


@given(st.integers(0), st.integers(1, 255))
def test_a_batch_with_another_byte_is_passed_over(at: int, other: int) -> None:
    payload = bytearray(batch(NOW_MS))
    payload[at % len(payload)] ^= other
    with pytest.raises(PassedOver):
        read(bytes(payload))


def test_a_sealed_batch_is_opened_by_the_tenants_key_and_passed_over_without_it() -> None:
    key = X25519PrivateKey.generate()
    sealed = Sealer(key.public_key(), X25519PrivateKey.generate(), "acme", "eu").seal(batch(NOW_MS))
    assert read(sealed, unsealer=Unsealer([key])).seq.tolist() == [1]
    for region, unsealer, reason in (("eu", None, "sealed"), ("us", Unsealer([key]), "sealed"), ("", None, "region")):
        with pytest.raises(PassedOver) as passed:
            read(sealed, region=region, unsealer=unsealer)
        assert passed.value.reason == reason


def test_fixes_of_several_batches_stand_one_after_the_other_under_their_devices() -> None:
    fixes = LiveFixes.of([read(batch(NOW_MS)), read(batch(NOW_MS, NOW_MS + 1, device="d-2")), read(batch(NOW_MS + 2))])
    assert fixes.devices == (("acme", "d-1"), ("acme", "d-2"))
    assert fixes.device.tolist() == [0, 1, 1, 0]
    assert (len(fixes), fixes.seq.tolist()) == (4, [1, 1, 2, 1])
