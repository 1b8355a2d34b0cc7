"""A device's entry in the registry, and the changes of it. Pure.

    expected ──enrol──▶ active ◀──resume── suspended
        ▲──expect again────┘ (another claim)
        └────────┴───────┴──────suspend──────▲
    any of these ──revoke──▶ revoked

A revoked name is never used again. A device that moves to another tenant, or new hardware, gets a new name.

Two operators may change an entry at once. Every reader decides alike which change is in force (`Precedence`): a revoked
device stays revoked, then the higher version wins, then the stricter state.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final, NamedTuple, Self

from pydantic import Field, StringConstraints, ValidationError, model_validator

from waybill.identity.claims import PASSWORD_HASH, is_token_id, token_id
from waybill.identity.errors import IdentityError
from waybill.identity.names import MAX_VERSION, Line, Moment, Serial, Version, device_name
from waybill.record.record import DEVICE_PATTERN
from waybill.settings import Settings


class DeviceState(StrEnum):
    EXPECTED = "expected"
    """It may enrol with its claim."""
    ACTIVE = "active"
    """It has a certificate, and may send."""
    SUSPENDED = "suspended"
    """It may not connect until it is resumed."""
    REVOKED = "revoked"
    """It may never connect again."""


_AGAIN_OPTION: Final = "waybill device expect --again"


def way_out(entry: DeviceEntry) -> str:
    """The end of a sentence about a device's state: what can be done from there."""
    match entry.state:
        case DeviceState.EXPECTED:
            return f": it enrols with its claim, or gets another one ({_AGAIN_OPTION}), or is suspended or revoked"
        case DeviceState.ACTIVE:
            return f": it may send; when its certificates have expired, {_AGAIN_OPTION} gives it another claim"
        case DeviceState.SUSPENDED:
            return ": resume it first, or revoke it"
        case DeviceState.REVOKED:
            return " permanently: use another name"


# Of two concurrent changes the stricter one wins: the other one can be repeated.
_STRICTNESS = (
    DeviceState.EXPECTED,
    DeviceState.ACTIVE,
    DeviceState.SUSPENDED,
    DeviceState.REVOKED,
)


class Precedence(NamedTuple):
    """The rank of a publication of a device: the greatest is in force, in whatever order they arrive."""

    is_ended: bool
    version: int
    strictness: int
    publication_id: str


def precedence(entry: DeviceEntry, publication_id: str) -> Precedence:
    return Precedence(entry.is_ended, entry.version, _STRICTNESS.index(entry.state), publication_id)


MAX_CERTIFICATES = 20
"""The last ones are kept."""
_CHANGED_BY_CHARACTERS = 100


class ChangeRefused(IdentityError):
    """The device's entry does not allow the change. `state` None: the device is unknown."""

    def __init__(self, device: str, state: DeviceState | None, change: str, why: str) -> None:
        super().__init__(f"{change} of {device} is refused by its entry in the registry: {why}" if change else why)
        self.device, self.state, self.change = device, state, change


class DeviceChange(NamedTuple):
    at: datetime
    by: str
    reason: str


_Name = Annotated[str, StringConstraints(pattern=rf"^{DEVICE_PATTERN.pattern}$")]


class Claim(Settings):
    """What a device shows once to be enrolled: a factory certificate or a token.

    `id`: the name of the certificate or token. `password_hash`: of a token, as in a broker's password file.
    `until`: the expiry of the claim.
    """

    id: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
    password_hash: Annotated[str, StringConstraints(pattern=rf"^{PASSWORD_HASH.pattern}$")] | None = None
    until: Moment | None = None

    @model_validator(mode="after")
    def _is_called_as_it_may_be(self) -> Self:
        # Else a publisher could put a secret of its own behind the name of another tenant's token.
        if self.password_hash is not None and self.id != token_id(self.password_hash):
            raise ValueError(f"a token with this hash is called {token_id(self.password_hash)}")
        if self.password_hash is None and is_token_id(self.id):
            raise ValueError("a claim that is called as a token needs its hash")
        return self


class EnrolledCertificate(Settings):
    """An operational certificate of a device. `serial`: in hexadecimal digits."""

    issuer: Annotated[Line, StringConstraints(min_length=1, max_length=64)]
    serial: Serial
    not_after: Moment


class DeviceEntry(Settings):
    """A device in the registry. `region`: only its authority enrols the device."""

    tenant: _Name
    device: _Name
    state: DeviceState
    version: Version
    region: _Name
    claim: Claim | None = None
    certificates: Annotated[tuple[EnrolledCertificate, ...], Field(max_length=MAX_CERTIFICATES)] = ()
    changed_at: Moment
    changed_by: Annotated[Line, StringConstraints(min_length=1, max_length=_CHANGED_BY_CHARACTERS)]
    reason: Line = ""

    @model_validator(mode="after")
    def _has_a_name(self) -> Self:
        device_name(self.tenant, self.device)
        return self

    @property
    def name(self) -> str:
        """`tenant/device`: its key in the registry, its MQTT user name and client id."""
        return f"{self.tenant}/{self.device}"

    @property
    def is_ended(self) -> bool:
        return self.state is DeviceState.REVOKED

    @property
    def is_unread_revocation(self) -> bool:
        """Whether it was revoked before its entry was read; see `revoke_unread`."""
        return self.state is DeviceState.REVOKED and self.version == 1

    @property
    def may_connect(self) -> bool:
        """Whether it may have a session, once it has a certificate."""
        return self.state in {DeviceState.EXPECTED, DeviceState.ACTIVE}


def expect(
    tenant: str,
    device: str,
    *,
    region: str,
    claim: Claim | None,
    change: DeviceChange,
    held: DeviceEntry | None = None,
) -> DeviceEntry:
    """A new device; without a claim it is active, because an operator gave it its certificate by hand.

    `held`: its entry in the registry. Raises ChangeRefused for a registered device, NameRefused.
    """
    # First: a name that fits no certificate must not get into the registry.
    name = device_name(tenant, device)
    if held is not None:
        why = f"it is expected already; {_AGAIN_OPTION} gives it another claim, and makes the earlier one void"
        raise _refused(held, "expect", why if held.state is DeviceState.EXPECTED else "")
    state = DeviceState.ACTIVE if claim is None else DeviceState.EXPECTED
    facts = {"tenant": tenant, "device": device, "state": state, "version": 1, "region": region, "claim": claim}
    return _entry(name, None, facts, change)


def expect_again(entry: DeviceEntry, *, region: str, claim: Claim | None, change: DeviceChange) -> DeviceEntry:
    """Another claim for a device that lost its claim, or whose certificates have all expired.

    Without a claim an expected device becomes active. Raises ChangeRefused while a certificate is valid: whoever has
    its key would go on beside the device.
    """
    if entry.state not in {DeviceState.EXPECTED, DeviceState.ACTIVE}:
        raise _refused(entry, "expect again")
    if claim is None and entry.state is DeviceState.ACTIVE:
        raise _refused(entry, "expect again", "it is active: `waybill pki issue` gives it a certificate by hand")
    # A certificate by hand is in no entry, so its expiry is unknown here.
    if entry.state is DeviceState.ACTIVE and entry.claim is None and not entry.certificates:
        raise _refused(entry, "expect again", "no certificate of it is here: give it one by hand")
    if any(one.not_after > change.at for one in entry.certificates):
        raise _refused(entry, "expect again", "it has a valid certificate: it renews it, or revoke the device")
    expected = _changed(entry, DeviceState.EXPECTED, change, certificates=())
    facts = expected.model_dump() | {"region": region, "claim": claim}
    if claim is None:
        facts["state"] = DeviceState.ACTIVE
    return _entry(entry.name, entry.state, facts, change)


def enrol(entry: DeviceEntry, certificate: EnrolledCertificate, change: DeviceChange) -> DeviceEntry:
    """The device used its claim and has a certificate. Raises ChangeRefused, also the second time."""
    if entry.state is not DeviceState.EXPECTED:
        raise _refused(entry, "enrol", "a claim is good once, for a device that is expected")
    return _changed(entry, DeviceState.ACTIVE, change, certificates=(*entry.certificates, certificate))


def renew(entry: DeviceEntry, certificate: EnrolledCertificate, change: DeviceChange) -> DeviceEntry:
    """One more certificate; expired ones are dropped. Raises ChangeRefused unless it is active."""
    if entry.state is not DeviceState.ACTIVE:
        raise _refused(entry, "renew")
    valid = tuple(one for one in entry.certificates if one.not_after > change.at)
    if len(valid) >= MAX_CERTIFICATES:  # a dropped one would not be on the revocation list
        raise _refused(entry, "renew", f"it has {len(valid)} valid certificates already")
    return _changed(entry, DeviceState.ACTIVE, change, certificates=(*valid, certificate))


def suspend(entry: DeviceEntry, change: DeviceChange) -> DeviceEntry:
    """Raises ChangeRefused."""
    if not entry.may_connect:
        raise _refused(entry, "suspend")
    return _changed(entry, DeviceState.SUSPENDED, change)


def resume(entry: DeviceEntry, change: DeviceChange) -> DeviceEntry:
    """The device may use its certificate again; an open claim is void. Raises ChangeRefused."""
    if entry.state is not DeviceState.SUSPENDED:
        raise _refused(entry, "resume")
    # Never expected: it may have enrolled at the moment of its suspension, and a claim is valid once.
    return _changed(entry, DeviceState.ACTIVE, change)


def revoke(entry: DeviceEntry, change: DeviceChange) -> DeviceEntry:
    """Raises ChangeRefused for an ended device."""
    if entry.is_ended:
        raise _refused(entry, "revoke")
    return _changed(entry, DeviceState.REVOKED, change)


def revoke_unread(name: str, region: str, change: DeviceChange) -> DeviceEntry:
    """The revocation of a device whose entry was not read: an ended entry outranks every other version.

    `region`: any. `revoke` publishes the device's facts again, once its entry is read. Raises ChangeRefused.
    """
    tenant, _, device = name.partition("/")
    facts = {"tenant": tenant, "device": device, "region": region}
    return _entry(name, None, facts | {"state": DeviceState.REVOKED, "version": 1}, change)


def _changed(
    entry: DeviceEntry,
    state: DeviceState,
    change: DeviceChange,
    *,
    certificates: tuple[EnrolledCertificate, ...] | None = None,
) -> DeviceEntry:
    facts = entry.model_dump() | {"state": state, "version": _next_version(entry, state)}
    if certificates is not None:
        # The authority's own records have every serial that it signed.
        facts["certificates"] = certificates[-MAX_CERTIFICATES:]
    return _entry(entry.name, entry.state, facts, change)


def _next_version(entry: DeviceEntry, to: str) -> int:
    # At the last version a device can still be locked out.
    if entry.version >= MAX_VERSION and to not in {DeviceState.REVOKED, DeviceState.SUSPENDED}:
        raise _refused(entry, to, f"it is at its last version, {MAX_VERSION}: revoke it")
    return min(entry.version + 1, MAX_VERSION)


def _entry(name: str, state: DeviceState | None, facts: dict[str, Any], change: DeviceChange) -> DeviceEntry:
    # Validated, because a reason, a name or a region may come from a command line.
    made = {"changed_at": change.at, "changed_by": change.by, "reason": change.reason}
    try:
        return DeviceEntry.model_validate(facts | made)
    except ValidationError as error:
        raise ChangeRefused(
            name, state, "", f"{name}: readers would refuse this entry: {first_fault(error)}"
        ) from error


def first_fault(error: ValidationError) -> str:
    """The place and the reason of the first fault; an attacker may have made thousands."""
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'entry'}: {first['msg'].removeprefix('Value error, ')}"


def _refused(entry: DeviceEntry, change: str, why: str = "") -> ChangeRefused:
    return ChangeRefused(entry.name, entry.state, change, why or f"it is {entry.state}{way_out(entry)}")
