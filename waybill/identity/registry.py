"""What is known of a device: its entry in the registry, and each change of it. Pure.

    expected ──enrol──▶ active ◀──resume── suspended
        ▲──expect again────┘ (another claim for one that cannot go on)
        └────────┴───────┴──────suspend──────▲
    any of these ──revoke──▶ revoked     ──move──▶ moved     ──replace──▶ replaced

The last three are the end of a name: nothing leads out of them. What moved or was replaced goes on under another name,
with an entry, a claim and a certificate of its own, and so with a new buffer and a new epoch; `vehicle` stays.

Two may change an entry at once, far from each other. Of what they publish the same one holds everywhere, in whichever
order it arrives (`Precedence`): what ended stays ended, else the higher version holds, and of two of a version the
stricter one.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, Self

from pydantic import Field, StringConstraints, ValidationError, model_validator

from waybill.identity.claims import PASSWORD_HASH, is_token_id, token_id
from waybill.identity.errors import IdentityError
from waybill.identity.names import MAX_VERSION, Line, Moment, Serial, Version, device_name
from waybill.record.record import DEVICE_PATTERN
from waybill.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


# States of a device.


class DeviceState(StrEnum):
    """What a device may do now."""

    EXPECTED = "expected"
    """It may enrol with its claim."""
    ACTIVE = "active"
    """It has a certificate, and may send."""
    SUSPENDED = "suspended"
    """It may not connect until it is resumed."""
    REVOKED = "revoked"
    """It may never connect again."""
    MOVED = "moved"
    """It belongs to another tenant now, under the name of its successor."""
    REPLACED = "replaced"
    """Its successor is in its vehicle now."""


# A name is used once: what ended under it is in records and bills, and must not mean another device.
ENDED = frozenset({DeviceState.REVOKED, DeviceState.MOVED, DeviceState.REPLACED})


# Messages of a refused change, with a next step.

_AGAIN_OPTION: Final = "waybill device expect --again"


def way_out(entry: DeviceEntry) -> str:
    """What can be done from where a device is: no state is one in which a command says no and nothing else."""
    match entry.state:
        case DeviceState.EXPECTED:
            return f": it enrols with its claim, or gets another one ({_AGAIN_OPTION}), or is suspended or revoked"
        case DeviceState.ACTIVE:
            return ": it may send until it is suspended, revoked, moved or replaced"
        case DeviceState.SUSPENDED:
            return ": resume it first, or revoke, move or replace it"
        case _ if entry.successor:
            return f" permanently; the device continues as {entry.successor}, change that entry"
        case _:
            return " permanently; use `waybill device replace` or another name"


def known_already(entry: DeviceEntry) -> str:
    """Why a device is not made known: it is, and a claim that was given out would end unseen; "": see `way_out`."""
    match entry.state:
        case DeviceState.ACTIVE:
            return (
                f"it is registered and active: when its certificates have expired, {_AGAIN_OPTION} gives it another "
                "claim"
            )
        case DeviceState.EXPECTED:
            there = f"it is expected already, in region {entry.region} with {awaited_claim(entry)}"
            return f"{there}; --again gives it another claim, and makes that one void"
        case _:
            return ""


def awaited_claim(entry: DeviceEntry) -> str:
    """With what a device that is expected is to enrol."""
    claim = entry.claim
    if claim is None:
        return "no claim"
    if not claim.is_token:
        return f"the factory certificate {claim.id}"
    until = "" if claim.until is None else f" until {claim.until:%Y-%m-%dT%H:%M:%SZ}"
    return f"a one-time token that is good{until}"


def ended_claims(held: Mapping[str, DeviceEntry | None], made: Iterable[DeviceEntry]) -> dict[str, str]:
    """What was known of each device that was expected and is to be so otherwise: its earlier claim is void by that."""
    found = dict[str, str]()
    for entry in made:
        before = held.get(entry.name)
        if before is None or before.state is not DeviceState.EXPECTED or before.claim == entry.claim:
            continue
        void = "; that is void: a device that has it cannot enrol by it"
        found[entry.name] = f"it was expected in region {before.region} with {awaited_claim(before)}{void}"
    return found


# Which of two publications is in force: equal for all readers, in any order. Pure.

# Of two changes at once the one that lets in less holds: the other one can be asked for again.
_STRICTNESS = (
    DeviceState.EXPECTED,
    DeviceState.ACTIVE,
    DeviceState.SUSPENDED,
    DeviceState.REPLACED,
    DeviceState.MOVED,
    DeviceState.REVOKED,
)


class Precedence(NamedTuple):
    """Which of two publications of a device holds: the greater one, in whichever order they arrive."""

    is_ended: bool
    version: int
    strictness: int
    publication_id: str


def precedence(entry: DeviceEntry, publication_id: str) -> Precedence:
    """The rank of a publication among those of its device."""
    # The id of the publication comes last: it decides only where nothing else does, and so by the same rule everywhere.
    return Precedence(entry.is_ended, entry.version, _STRICTNESS.index(entry.state), publication_id)


MAX_CERTIFICATES = 20
"""Of an entry: those that were issued last."""
_CHANGED_BY_CHARACTERS = 100


class ChangeRefused(IdentityError):
    """A change that leads nowhere from where a device is. `state` None: it is not known, and `change` may be ""."""

    def __init__(self, device: str, state: DeviceState | None, change: str, why: str) -> None:
        super().__init__(f"{change} of {device} is refused by its entry in the registry: {why}" if change else why)
        self.device, self.state, self.change = device, state, change


class DeviceChange(NamedTuple):
    """Who changes an entry, when, and why."""

    at: datetime
    by: str
    reason: str


_Name = Annotated[str, StringConstraints(pattern=rf"^{DEVICE_PATTERN.pattern}$")]
_FullName = Annotated[
    str, StringConstraints(max_length=64, pattern=rf"^{DEVICE_PATTERN.pattern}/{DEVICE_PATTERN.pattern}$")
]


class Claim(Settings):
    """What an unknown device shows to be enrolled, once: a certificate of its factory, or a token.

    `id`: the name of that certificate, or of the token. `password_hash`: of a token's text, as a broker's password file
    has it; the text itself is nowhere but with the device. `until`: when it must have been used, if ever.
    """

    id: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
    password_hash: Annotated[str, StringConstraints(pattern=rf"^{PASSWORD_HASH.pattern}$")] | None = None
    until: Moment | None = None

    @model_validator(mode="after")
    def _is_called_as_it_may_be(self) -> Self:
        # Else who may publish for another tenant could put a secret of his own behind the name of a token.
        if self.password_hash is not None and self.id != token_id(self.password_hash):
            raise ValueError(f"a token with this hash is called {token_id(self.password_hash)}")
        if self.password_hash is None and is_token_id(self.id):
            raise ValueError("what is called as a token is has the hash of one")
        return self

    @property
    def is_token(self) -> bool:
        """Whether it is a one-time token."""
        return self.password_hash is not None


class EnrolledCertificate(Settings):
    """An operational certificate that a device got when it was enrolled. `serial`: in hexadecimal digits."""

    issuer: Annotated[Line, StringConstraints(min_length=1, max_length=64)]
    serial: Serial
    not_after: Moment


class DeviceEntry(Settings):
    """A device, as the registry has it. `region`: whose authority enrols it, no other does.

    `vehicle`: the name of the first device in its vehicle. `successor`: what it goes on as where it ended.
    `predecessor`: whose successor it is; until that one has ended in its favour it is not enrolled.
    """

    tenant: _Name
    device: _Name
    state: DeviceState
    version: Version
    region: _Name
    vehicle: _FullName
    claim: Claim | None = None
    certificates: Annotated[tuple[EnrolledCertificate, ...], Field(max_length=MAX_CERTIFICATES)] = ()
    successor: _FullName | None = None
    predecessor: _FullName | None = None
    changed_at: Moment
    changed_by: Annotated[Line, StringConstraints(min_length=1, max_length=_CHANGED_BY_CHARACTERS)]
    reason: Line = ""

    @model_validator(mode="after")
    def _has_a_name(self) -> Self:
        device_name(self.tenant, self.device)
        return self

    @property
    def name(self) -> str:
        """`tenant/device`: its key in the registry, its user name and its client id."""
        return f"{self.tenant}/{self.device}"

    @property
    def is_ended(self) -> bool:
        """Whether the name is at its end."""
        return self.state in ENDED

    @property
    def is_unread_revocation(self) -> bool:
        """Whether it was revoked before anybody had read what was known of it; see `revoke_unread`."""
        return self.state is DeviceState.REVOKED and self.version == 1

    @property
    def was_never_enrolled(self) -> bool:
        """Whether it is active, and has not used the claim that it got: what was suspended meanwhile and resumed."""
        return self.state is DeviceState.ACTIVE and self.claim is not None and not self.certificates

    @property
    def may_connect(self) -> bool:
        """Whether it may have a session. One that is expected has none before it has a certificate."""
        return self.state in {DeviceState.EXPECTED, DeviceState.ACTIVE}


class Beginning(NamedTuple):
    """How a successor begins. `region`: as before, if None. `held`: what is known by its name already."""

    claim: Claim | None
    region: str | None = None
    held: DeviceEntry | None = None


def expect(
    tenant: str,
    device: str,
    *,
    region: str,
    claim: Claim | None,
    change: DeviceChange,
    held: DeviceEntry | None = None,
    succeeds: DeviceEntry | None = None,
) -> DeviceEntry:
    """A new device; without a claim it is active, because somebody gave it its certificate by hand.

    One that is known is refused: another claim makes its token void, and is given by `expect_again`. `succeeds`: in
    whose place it is; then `held` may be what a command that was killed left expected. Raises ChangeRefused,
    NameRefused.
    """
    # First, so that a name that fits no certificate never gets into the registry.
    name = device_name(tenant, device)
    if held is not None and succeeds is None:
        raise _refused(held, "expect", known_already(held))
    facts = {
        "tenant": tenant,
        "device": device,
        "state": DeviceState.ACTIVE if claim is None else DeviceState.EXPECTED,
        "version": 1 if held is None else _next_version(held, "expect"),
        "region": region,
        "vehicle": name,
        "claim": claim,
    }
    if succeeds is not None:
        facts |= {"vehicle": succeeds.vehicle, "predecessor": succeeds.name}
    return _entry(name, None if held is None else held.state, facts, change)


def expect_again(
    entry: DeviceEntry,
    *,
    region: str,
    claim: Claim | None,
    change: DeviceChange,
    predecessor: DeviceEntry | None = None,
) -> DeviceEntry:
    """Another claim for a device that cannot go on: it lost its claim, or was away until its certificates had ended.

    Without a claim, of one that is expected: it is active, as one that is new. `predecessor`: what is known now of the
    one that it was to succeed; if that ended otherwise, it is a device of its own. Raises ChangeRefused where a
    certificate is still good: whoever has its key would go on beside the device.
    """
    if entry.state not in {DeviceState.EXPECTED, DeviceState.ACTIVE}:
        raise _refused(entry, "expect again")
    if claim is None and entry.state is DeviceState.ACTIVE:
        raise _refused(entry, "expect again", "it is active: `waybill pki device` gives it a certificate by hand")
    # One that was given by hand is in no entry: nobody knows here whether it has ended.
    if entry.state is DeviceState.ACTIVE and entry.claim is None and not entry.certificates:
        raise _refused(entry, "expect again", "no certificate of it is here: give it one by hand, or replace it")
    if any(one.not_after > change.at for one in entry.certificates):
        raise _refused(
            entry, "expect again", "it has a certificate that is good: it renews it, or replace or revoke the device"
        )
    expected = _changed(entry, DeviceState.EXPECTED, change, certificates=())
    facts = expected.model_dump() | {"region": region, "claim": claim} | _lineage(entry, predecessor)
    if claim is None:
        facts["state"] = DeviceState.ACTIVE
    return _entry(entry.name, entry.state, facts, change)


def _lineage(entry: DeviceEntry, predecessor: DeviceEntry | None) -> dict[str, str | None]:
    """In whose place it is: a predecessor that ended otherwise, or is not known any more, never ends in its favour."""
    if entry.predecessor is None or (predecessor is not None and predecessor.successor == entry.name):
        return {"vehicle": entry.vehicle, "predecessor": entry.predecessor}
    if predecessor is not None and not predecessor.is_ended:
        why = f"it is to succeed {predecessor.name}, which is {predecessor.state}: move or replace that one again, or "
        raise _refused(entry, "expect", f"{why}revoke it, and {entry.name} is a device of its own")
    return {"vehicle": entry.name, "predecessor": None}


def enrol(entry: DeviceEntry, certificate: EnrolledCertificate, change: DeviceChange) -> DeviceEntry:
    """Its claim was used, and it has a certificate. Raises ChangeRefused, the second time too."""
    if entry.state is not DeviceState.EXPECTED:
        raise _refused(entry, "enrol", "a claim is good once, for a device that is expected")
    return _changed(entry, DeviceState.ACTIVE, change, certificates=(*entry.certificates, certificate))


def renew(entry: DeviceEntry, certificate: EnrolledCertificate, change: DeviceChange) -> DeviceEntry:
    """It has one more certificate; those that have ended are let go of. Raises ChangeRefused where it may not send."""
    if entry.state is not DeviceState.ACTIVE:
        raise _refused(entry, "renew")
    valid = tuple(one for one in entry.certificates if one.not_after > change.at)
    if len(valid) >= MAX_CERTIFICATES:  # letting go of one that is valid would keep it out of a revocation
        raise _refused(entry, "renew", f"it has {len(valid)} valid certificates already")
    return _changed(entry, DeviceState.ACTIVE, change, certificates=(*valid, certificate))


def suspend(entry: DeviceEntry, change: DeviceChange) -> DeviceEntry:
    """It may not connect until it is resumed. Raises ChangeRefused."""
    if not entry.may_connect:
        raise _refused(entry, "suspend")
    return _changed(entry, DeviceState.SUSPENDED, change)


def resume(entry: DeviceEntry, change: DeviceChange) -> DeviceEntry:
    """It may go on with the certificate that it has; a claim that was open is not any more. Raises ChangeRefused."""
    if entry.state is not DeviceState.SUSPENDED:
        raise _refused(entry, "resume")
    # Never expected: it may have been enrolled at the moment at which it was suspended, and a claim is good once. What
    # was not is given another one by `expect_again`.
    return _changed(entry, DeviceState.ACTIVE, change)


def revoke(entry: DeviceEntry, change: DeviceChange) -> DeviceEntry:
    """It may never connect again. Raises ChangeRefused for a name that is at its end."""
    if entry.is_ended:
        raise _refused(entry, "revoke")
    return _changed(entry, DeviceState.REVOKED, change)


def revoke_unread(name: str, region: str, change: DeviceChange) -> DeviceEntry:
    """The revocation of a device of which nothing was read: what has ended holds against every other version.

    `region`: any. It says nothing else of the device: `revoke` does, once its entry is read. Raises ChangeRefused.
    """
    tenant, _, device = name.partition("/")
    facts = {"tenant": tenant, "device": device, "region": region, "vehicle": name}
    return _entry(name, None, facts | {"state": DeviceState.REVOKED, "version": 1}, change)


def move(
    entry: DeviceEntry, tenant: str, beginning: Beginning, change: DeviceChange
) -> tuple[DeviceEntry, DeviceEntry]:
    """The end of it here, and its beginning at another tenant. Raises ChangeRefused, NameRefused."""
    if entry.is_ended or tenant == entry.tenant:
        raise _refused(entry, "move", f"it belongs to {tenant} already" if tenant == entry.tenant else "")
    begun = _begin(entry, "move", (tenant, entry.device), beginning, change)
    return _changed(entry, DeviceState.MOVED, change, successor=begun.name), begun


def replace(
    entry: DeviceEntry, device: str, beginning: Beginning, change: DeviceChange
) -> tuple[DeviceEntry, DeviceEntry]:
    """The end of it, and the beginning of the device that is in its vehicle now. Raises ChangeRefused, NameRefused.

    One that was revoked stays revoked, and may be replaced once.
    """
    if entry.is_ended and (entry.state is not DeviceState.REVOKED or entry.successor):
        raise _refused(entry, "replace")
    # Stolen first, replaced later: nothing may soften what was said of the old one.
    state = DeviceState.REVOKED if entry.state is DeviceState.REVOKED else DeviceState.REPLACED
    begun = _begin(entry, "replace", (entry.tenant, device), beginning, change)
    return _changed(entry, state, change, successor=begun.name), begun


def _begin(
    entry: DeviceEntry, what: str, successor: tuple[str, str], beginning: Beginning, change: DeviceChange
) -> DeviceEntry:
    name, (claim, region, held) = device_name(*successor), beginning
    # What began this way before its end was published may begin again: a command may be killed between the two.
    is_begun = held is not None and not held.is_ended and held.vehicle == entry.vehicle
    if name == entry.name or (held is not None and not is_begun):
        ways = {
            "move": f"revoke {entry.name}, and expect it at {successor[0]} by another name",
            "replace": "use another name for the new one",
        }
        raise _refused(entry, what, f"{name} is already registered, and a name is used once: {ways[what]}")
    if held is not None and held.state is not DeviceState.EXPECTED:
        return held
    return expect(*successor, region=region or entry.region, claim=claim, change=change, held=held, succeeds=entry)


def _changed(
    entry: DeviceEntry,
    state: DeviceState,
    change: DeviceChange,
    *,
    certificates: tuple[EnrolledCertificate, ...] | None = None,
    successor: str | None = None,
) -> DeviceEntry:
    facts = entry.model_dump() | {
        "state": state,
        "version": _next_version(entry, state),
        "successor": successor or entry.successor,
    }
    if certificates is not None:
        # The oldest go: they are renewals, and the authority's own list has every serial that it signed.
        facts["certificates"] = certificates[-MAX_CERTIFICATES:]
    return _entry(entry.name, entry.state, facts, change)


def _next_version(entry: DeviceEntry, to: str) -> int:
    # At the last version a device can still be locked out: what ends it, or lets in less, holds at the same one.
    if entry.version >= MAX_VERSION and to not in {*ENDED, DeviceState.SUSPENDED}:
        raise _refused(entry, to, f"it is at its last version, {MAX_VERSION}: replace, move or revoke it")
    return min(entry.version + 1, MAX_VERSION)


def _entry(name: str, state: DeviceState | None, facts: dict[str, Any], change: DeviceChange) -> DeviceEntry:
    # Validated anew: a reason, a name or a region may come from a command line.
    made = {"changed_at": change.at, "changed_by": change.by, "reason": change.reason}
    try:
        return DeviceEntry.model_validate(facts | made)
    except ValidationError as error:
        raise ChangeRefused(
            name, state, "", f"{name}: readers would refuse this entry: {first_fault(error)}"
        ) from error


def first_fault(error: ValidationError) -> str:
    """Where a model is not what it is to be, and why: the first fault is enough to find it."""
    # An attacker may have made thousands.
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'entry'}: {first['msg'].removeprefix('Value error, ')}"


def _refused(entry: DeviceEntry, change: str, why: str = "") -> ChangeRefused:
    return ChangeRefused(entry.name, entry.state, change, why or f"it is {entry.state}{way_out(entry)}")
