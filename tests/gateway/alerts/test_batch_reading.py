"""From a message to records: what is no batch is passed over with a reason, whatever its bytes are."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from gateway.alerts.partition_evaluation import UnusableBatch, read_batch
from waybill.identity.sealing import Sealer, Unsealer
from waybill.record import Batch, Canary, Position, Record, encode
from waybill.record.columns import RecordColumns

NOW_MS = 1_767_603_422_000
ACME = frozenset({"acme"})


def batch(*times_ms: int, device: str = "d-1") -> bytes:
    records = [
        Record(seq, t_ms * 1000, Position(latitude=50.0, longitude=8.0, speed_mps=3.0))
        for seq, t_ms in enumerate(times_ms, 1)
    ]
    last = Record(len(times_ms) + 1, NOW_MS * 1000, Canary(id="c"))
    return encode(Batch(device, 7, len(times_ms) + 1, (*records, last)))


def read(payload: bytes, tenant: str = "acme", region: str = "eu", unsealer: Unsealer | None = None) -> RecordColumns:
    said = {"tenant": tenant, "region": region}
    named, columns = read_batch(payload, said, tenants=ACME, unsealer=unsealer or Unsealer())
    assert named == tenant
    return columns


def test_a_batch_of_another_tenant_and_one_of_none_are_passed_over() -> None:
    for said in ({"tenant": "other"}, {}):
        with pytest.raises(UnusableBatch) as passed:
            read_batch(batch(NOW_MS), said, tenants=ACME, unsealer=Unsealer())
        assert passed.value.reason == "tenant"


@given(st.binary(max_size=300))
def test_any_bytes_are_passed_over_and_nothing_else_is_raised(payload: bytes) -> None:
    with pytest.raises(UnusableBatch):
        read(payload)


def test_a_sealed_batch_is_opened_by_the_tenants_key_and_passed_over_without_it() -> None:
    key = X25519PrivateKey.generate()
    sealed = Sealer(key.public_key(), X25519PrivateKey.generate(), "acme", "eu").seal(batch(NOW_MS))
    assert read(sealed, unsealer=Unsealer([key])).seq.tolist() == [1, 2]
    for region, unsealer, reason in (("eu", None, "sealed"), ("us", Unsealer([key]), "sealed"), ("", None, "region")):
        with pytest.raises(UnusableBatch) as passed:
            read(sealed, region=region, unsealer=unsealer)
        assert passed.value.reason == reason
