"""Entries of the device registry as messages of its topic: key, body and properties. Pure.

The key of a message is the name of its device, so that compaction keeps the last one of each. A malformed message is
refused, counted and named, and changes nothing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple, Self

import structlog
from pydantic import ValidationError, model_validator

from waybill.identity.errors import IdentityError, SignatureFault, SignatureRefused
from waybill.identity.names import PrincipalKind, principal
from waybill.identity.operator_keys import ANY, OperatorKeys, Scope
from waybill.identity.registry import DeviceEntry, DeviceState, Precedence, first_fault, precedence
from waybill.identity.signatures import (
    ID_PROPERTY,
    MAX_AHEAD_MS,
    REASON,
    SIGNATURE,
    SIGNER,
    OperatorKey,
    Publication,
    checked_reason,
    drawn_at,
    encoded_signature,
    is_far_ahead,
    is_publication_id,
    read_operators,
    sign_publication,
    signature_of,
    verify_publication,
)
from waybill.record import InvalidJson, parse_json
from waybill.settings import Settings, SettingsError, parse, read_text

# Settings of all registry readers: the trusted signatures.


class RegistryTrust(Settings):
    """`operators`: the file of the trusted public keys. `unsigned`: accept unsigned entries. One of them must be
    set.
    """

    operators: Path | None = None
    unsigned: bool = False

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if self.unsigned == (self.operators is not None):
            raise ValueError(
                "set either operators (file of public keys) or unsigned = true (accept unsigned changes), but "
                "only one of them"
            )
        return self

    def followed(self) -> FollowedOperators | None:
        """The trusted keys, reloaded for a daemon; None: signatures are not checked. Raises SettingsError."""
        return None if self.operators is None else FollowedOperators(self.operators)

    def check_signed(self) -> CheckSigned | None:
        """The check of signatures; None: signatures are not checked. Raises SettingsError."""
        return None if self.operators is None else check_by(read_operators(self.operators))


# Trusted keys, reloaded while a daemon runs.

_LOOK_S: Final = 1.0
_LOG = structlog.get_logger("operators")


class FollowedOperators:
    """The trusted `keys` of a file that is reloaded. Any thread may read; one calls `look`. Raises SettingsError.

    While the file cannot be used later, the former keys stay trusted and `problem` says why.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._text = read_text(path)
        self.keys = parse(OperatorKeys, self._text, str(path))
        self.problem = ""
        self._next_s = clock() + _LOOK_S

    def look(self) -> bool:
        """Whether the keys changed since the last call; the file is read at most once a second."""
        if self._clock() < self._next_s:
            return False
        self._next_s = self._clock() + _LOOK_S
        try:
            text = read_text(self._path)
            if text == self._text:
                self.problem = ""
                return False
            self.keys = parse(OperatorKeys, text, str(self._path))
        except SettingsError as error:
            if not self.problem:
                _LOG.error("the former trusted keys stay in use", problem="; ".join(error.lines))
            self.problem = f"{'; '.join(error.lines)}; the keys that it had before hold"
            return False
        self._text, self.problem = text, ""
        _LOG.info("the trusted keys were read again", file=str(self._path), keys=len(self.keys.keys))
        return True

    def check_signed(self, found: DevicePublication, body: bytes, properties: Mapping[str, str]) -> None:
        """Raises IdentityError for an entry that no trusted key signed, or that its key may not sign."""
        return check_by(self.keys)(found, body, properties)


# Signatures of registry entries.

ENROLMENT_KIND: Final = "enrolment"
"""The kind of an access daemon's key."""
MAX_WARRANTED_CHANGES: Final = 10_000
"""Changes of an access daemon after the operator's: enough for a device's life, far below the last version."""
_WARRANT: Final = "waybill warrant 1"
_WARRANT_TEXT: Final = re.compile(r"([0-9a-f]{16}):([0-9a-f-]{36}):([1-9][0-9]{0,15}):([A-Za-z0-9+/]{86}==)")


def signed_by(key: OperatorKey) -> SignEntry:
    def sign(entry: DeviceEntry, body: bytes, publication_id: str, warrant: str) -> Mapping[str, str]:
        if not warrant and entry.may_connect:
            signature = key.sign(_WARRANT, _warranted(entry, entry.version, publication_id))
            warrant = f"{key.key_id}:{publication_id}:{entry.version}:{encoded_signature(signature)}"
        publication = _publication(entry, body, warrant)
        properties = sign_publication(key, publication, publication_id, _reason(entry))
        return {**properties, WARRANT: warrant} if warrant else properties

    return sign


def check_by(keys: OperatorKeys) -> CheckSigned:
    """A check that raises SignatureRefused unless one of these keys signed the entry and has the right."""

    def check(found: DevicePublication, body: bytes, properties: Mapping[str, str]) -> None:
        entry, signer = found.entry, properties.get(SIGNER, "")
        publication = _publication(entry, body, properties.get(WARRANT, ""))
        verify_publication(keys, publication, properties, scope_of_entry(keys, signer, entry))
        if _is_enroller(keys, signer):
            _check_enroller(keys, signer, entry)
            _check_warrant(keys, found.warrant, entry)

    return check


def check_right(keys: OperatorKeys, signer: str, entry: DeviceEntry, moment: datetime, warrant: str = "") -> None:
    """Raises SignatureRefused if readers would refuse this entry from the key, with this warrant."""
    keys.check(signer, scope=scope_of_entry(keys, signer, entry), moment=moment)
    if _is_enroller(keys, signer):
        _check_enroller(keys, signer, entry)
        _check_warrant(keys, warrant, entry)


def _check_enroller(keys: OperatorKeys, signer: str, entry: DeviceEntry) -> None:
    key = keys.keys[signer]
    if key.name != principal(PrincipalKind.ACCESS, entry.region):
        what = f"the key of {key.name} may not speak for devices that {entry.region} enrols"
        raise SignatureRefused(SignatureFault.NO_RIGHT, what)
    if entry.state is not DeviceState.ACTIVE or not entry.certificates:
        what = f"the key of {key.name} may say that a device has a certificate, and nothing else of it"
        raise SignatureRefused(SignatureFault.NO_RIGHT, what)


def _check_warrant(keys: OperatorKeys, warrant: str, entry: DeviceEntry) -> None:
    """Raises SignatureRefused unless an operator's warrant gives this device, as the entry has it, to its region."""
    matched = _WARRANT_TEXT.fullmatch(warrant)
    if matched is None:
        raise SignatureRefused(SignatureFault.NO_RIGHT, f"it carries no operator's warrant for {entry.name}")
    signer, publication_id, version, signature = matched[1], matched[2], int(matched[3]), signature_of(matched[4])
    if not (is_publication_id(publication_id) and version < entry.version <= version + MAX_WARRANTED_CHANGES):
        raise SignatureRefused(SignatureFault.NO_RIGHT, f"the warrant that it carries is not of version {version}")
    parts, scope = _warranted(entry, version, publication_id), Scope(KIND, frozenset((entry.tenant,)))
    keys.verify(signer, signature, _WARRANT, parts, scope=scope, moment=drawn_at(publication_id))


def _warranted(entry: DeviceEntry, version: int, publication_id: str) -> list[bytes]:
    claim = "" if entry.claim is None else entry.claim.id
    facts = (entry.name, entry.region, claim, str(version), publication_id)
    return [fact.encode() for fact in facts]


def _publication(entry: DeviceEntry, body: bytes, warrant: str) -> Publication:
    # The warrant is signed too: the region that enrols needs it.
    # A body is one JSON object, so its end is unambiguous.
    return Publication(KIND, entry.name, body + warrant.encode())


def scope_of_entry(keys: OperatorKeys, signer: str, entry: DeviceEntry) -> Scope:
    return Scope(ENROLMENT_KIND if _is_enroller(keys, signer) else KIND, frozenset((entry.tenant,)))


def _is_enroller(keys: OperatorKeys, signer: str) -> bool:
    key = keys.keys.get(signer)
    return key is not None and ENROLMENT_KIND in key.kinds and not {KIND, ANY} & {*key.kinds}


def _reason(entry: DeviceEntry) -> str:
    # A signature needs a reason.
    return checked_reason(entry.reason or str(entry.state))


KIND: Final = "device"
"""The kind of signed entries."""
# Twice the longest names and reasons.
MAX_ENTRY_BYTES: Final = 16 << 10
_MAX_DEPTH: Final = 4
_MAX_VALUES: Final = 200
_SHOWN_CHARACTERS: Final = 100

WARRANT: Final = "warrant"
"""The property with an operator's warrant."""
MAX_WARRANT_CHARACTERS: Final = 250

ENTRY_PROPERTIES: Final = frozenset({ID_PROPERTY, REASON, SIGNATURE, SIGNER, WARRANT})
"""The properties of an entry's message."""

NO_ENTRY: Final = "no-entry"
"""The reason of a malformed message."""

AHEAD: Final = "ahead"
"""The reason of an entry that is dated more than five minutes ahead of the reader's clock."""

ARGUABLE: Final = frozenset({AHEAD, SignatureFault.UNKNOWN_KEY, SignatureFault.NOT_VALID_THEN, SignatureFault.NO_RIGHT})
"""The reasons for which a reader with other keys or another clock might accept the entry."""

NO_ROOM: Final = "no-room"
"""The reason of a valid entry for which the reader has no room."""

OTHER_TENANT: Final = "other-tenant"
"""The reason of an entry in the topic of another tenant."""

CheckSigned = Callable[["DevicePublication", bytes, Mapping[str, str]], None]
"""Raises IdentityError unless a key with the right signed a publication, its body and its properties."""


SignEntry = Callable[[DeviceEntry, bytes, str, str], Mapping[str, str]]
"""The signature properties of an entry, its body, its publication id and its warrant ("": its own)."""


def unsigned(_: DeviceEntry, __: bytes, ___: str, ____: str) -> Mapping[str, str]:
    """Signs nothing: for a registry whose readers accept unsigned entries."""
    return {}


class EntryRefused(IdentityError):
    """A message of the registry that is refused; `key` is its key.

    `reason`: `no-entry`, `ahead`, `no-room`, `other-tenant`, or the word of a SignatureFault.
    """

    def __init__(self, key: str, why: str, reason: str = NO_ENTRY) -> None:
        shown = key if len(key) <= _SHOWN_CHARACTERS else f"{key[:_SHOWN_CHARACTERS]}..."
        is_not = "not taken" if reason == NO_ROOM else "no entry"
        super().__init__(f"the registry's message {shown!r} is {is_not}: {why}")
        self.key, self.reason = key, reason


class DevicePublication(NamedTuple):
    """An entry and its publication id.

    `signer`: the id of the key that signed it; "" if signatures are not checked. `device sign` publishes an entry again
    under another key; `changed_by` of the entry stays. `warrant`: an operator's warrant, by which an access daemon may
    enrol and renew the device.
    """

    entry: DeviceEntry
    publication_id: str
    signer: str = ""
    warrant: str = ""

    @property
    def precedence(self) -> Precedence:
        return precedence(self.entry, self.publication_id)


def devices_topic(tenant: str) -> str:
    """The compacted topic of a tenant's devices; no other tenant may write to it."""
    return f"persistent://{tenant}/registry/devices"


def tenant_of(name: str) -> str:
    return name.partition("/")[0]


def entry_body(entry: DeviceEntry) -> bytes:
    body = entry.model_dump_json(exclude_none=True).encode()
    assert len(body) <= MAX_ENTRY_BYTES, entry.name
    return body


def read_entry(
    key: str | None,
    body: bytes,
    properties: Mapping[str, str],
    now_ms: float,
    check_signed: CheckSigned | None = None,
) -> DevicePublication:
    """The publication in a message that is read at `now_ms` (since 1970). Raises EntryRefused."""
    key = key or ""
    publication_id = properties.get(ID_PROPERTY, "")
    if not is_publication_id(publication_id):
        raise EntryRefused(key, f"its property {ID_PROPERTY} is to be a UUID of version 7")
    # By our own clock: the publisher's may be wrong.
    if is_far_ahead(publication_id, now_ms):
        raise EntryRefused(key, f"it is dated {drawn_at(publication_id):%Y-%m-%d %H:%M} UTC", AHEAD)
    try:
        facts = parse_json(body, max_bytes=MAX_ENTRY_BYTES, max_depth=_MAX_DEPTH, max_values=_MAX_VALUES)
        entry = DeviceEntry.model_validate(facts)
    except InvalidJson as error:
        raise EntryRefused(key, str(error)) from error
    except ValidationError as error:
        raise EntryRefused(key, first_fault(error)) from error
    # Compaction uses the key, readers use the body.
    if entry.name != key:
        raise EntryRefused(key, f"its body is of {entry.name}")
    if entry.changed_at > drawn_at(publication_id) + timedelta(milliseconds=MAX_AHEAD_MS):
        raise EntryRefused(key, "its change is later than its publication", AHEAD)
    # Last, because a signature is the most expensive check.
    signer = "" if check_signed is None else properties.get(SIGNER, "")
    found = DevicePublication(entry, publication_id, signer, properties.get(WARRANT, "")[:MAX_WARRANT_CHARACTERS])
    try:
        if check_signed is not None:
            check_signed(found, body, properties)
    except SignatureRefused as error:
        raise EntryRefused(key, str(error), error.fault) from error
    except IdentityError as error:
        raise EntryRefused(key, str(error)) from error
    return found
