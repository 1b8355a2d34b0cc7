"""Devices of the registry for tests: changes, entries, and sequences of what operators ask for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import strategies as st

from waybill.identity.claims import token_id
from waybill.identity.publication_id import RANDOM_BITS, next_publication_id
from waybill.identity.registry import Claim, DeviceChange, DeviceEntry, EnrolledCertificate, expect
from waybill.identity.registry_messages import DevicePublication

MOMENT = datetime(2026, 11, 23, 12, tzinfo=UTC)
_HASHES = [f"$7$101$c2FsdA==${letter * 86}==" for letter in "AB"]
CLAIM, OTHER_CLAIM = (Claim(id=token_id(one), password_hash=one) for one in _HASHES)
CERTIFICATE = EnrolledCertificate(issuer="Waybill regional authority eu", serial="abc1", not_after=MOMENT)
CHANGE = DeviceChange(MOMENT, "anna", "because")


def change(seconds: int = 0, reason: str = "because") -> DeviceChange:
    return DeviceChange(MOMENT + timedelta(seconds=seconds), "anna", reason)


def expected(tenant: str = "acme", device: str = "bus-1", *, claim: Claim | None = CLAIM) -> DeviceEntry:
    return expect(tenant, device, region="eu", claim=claim, change=CHANGE)


def active(tenant: str = "acme", device: str = "bus-1") -> DeviceEntry:
    return expected(tenant, device, claim=None)


def published(entry: DeviceEntry, random_bits: int = 0) -> DevicePublication:
    return DevicePublication(entry, next_publication_id(None, int(MOMENT.timestamp() * 1000), random_bits))


changes = st.builds(
    lambda seconds, by, reason: DeviceChange(MOMENT + timedelta(seconds=seconds), by, reason),
    st.integers(0, 10**8),
    st.sampled_from(["anna", "ben", "access@eu"]),
    st.text("äb %\x27", max_size=20),
)
random_bits = st.integers(0, (1 << RANDOM_BITS) - 1)
