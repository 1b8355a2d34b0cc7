"""Authorities and credentials for tests, at a fixed time."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from hypothesis import strategies as st

from waybill.identity.authority import Authority, KeyPair, make_regional, make_root
from waybill.identity.claims import token_id
from waybill.identity.device_files import StatedDevice
from waybill.identity.errors import SignatureRefused
from waybill.identity.operator_keys import OperatorKeys
from waybill.identity.operator_settings import OperatorSettings
from waybill.identity.registry import Claim, DeviceChange, DeviceEntry, EnrolledCertificate, expect
from waybill.identity.registry_messages import DevicePublication
from waybill.identity.registry_session import RegistrySession
from waybill.identity.signatures import (
    RANDOM_BITS,
    NewOperator,
    OperatorKey,
    next_publication_id,
    trust_operator,
    trusted_key,
)

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
LOOPBACK = "localhost", "127.0.0.1"
YEAR, MONTH = timedelta(days=365), timedelta(days=30)


def root_authority(*, now: datetime = NOW, lifetime: timedelta = 10 * YEAR) -> Authority:
    return make_root("Waybill root", KeyPair.generate(), now=now, serial=1, lifetime=lifetime)


def regional_authority(root: Authority, region: str = "eu", *, lifetime: timedelta = YEAR) -> Authority:
    key = KeyPair.generate()
    issued = make_regional(root, region, key.public, servers=LOOPBACK, now=NOW, serial=2, lifetime=lifetime)
    return Authority(issued.certificate, key)


def operator(
    name: str = "anna",
    *,
    tenants: tuple[str, ...] = ("*",),
    kinds: tuple[str, ...] = ("*",),
    accounts: tuple[str, ...] = (),
    valid_from: datetime | None = None,
    valid_until: datetime | None = None,
) -> NewOperator:
    key = OperatorKey.generate()
    trusted = trusted_key(
        key, name, tenants=tenants, kinds=kinds, accounts=accounts, valid_from=valid_from, valid_until=valid_until
    )
    return NewOperator(key, trusted)


def trusting(*operators: NewOperator) -> OperatorKeys:
    return OperatorKeys(keys={one.key.key_id: one.trusted for one in operators})


def operators_file(path: Path, *operators: NewOperator) -> Path:
    for one in operators:
        trust_operator(path, one)
    return path


OPERATOR = OperatorSettings(
    service_url="pulsar://nowhere",
    admin_url="http://nowhere",
    regions=("eu", "us"),
    tenants=("acme", "zeta"),
    unsigned=True,
    operator="bea",
)


class HeldDevices(RegistrySession):
    """A session that knows these devices."""

    def __init__(self, held: Iterable[DeviceEntry] = ()) -> None:
        self.held = {one.name: one for one in held}

    def get(self, name: str) -> DeviceEntry | None:
        return self.held.get(name)

    def refusal(self, _: DeviceEntry) -> SignatureRefused | None:
        return None


def devices_toml(stated: Iterable[StatedDevice]) -> str:
    lines = list[str]()
    for one in stated:
        facts = one.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
        lines += ["[[device]]", *(f"{key} = {json.dumps(value)}" for key, value in facts.items())]
    return "\n".join(lines)


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
