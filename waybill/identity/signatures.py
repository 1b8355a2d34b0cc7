"""Signatures of operators: Ed25519 (RFC 8032) over a list of parts; and the ids of what they publish.

The signed bytes are a word for the kind, then the parts, each with its length before it. So a signature of one kind is
not valid for another, and no byte can move from one part to the next.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from waybill.daemon.durable_file import alone_in, create_durably, replace_durably
from waybill.identity.errors import OperatorKeyRefused, SignatureFault, SignatureRefused
from waybill.identity.names import parse_name
from waybill.identity.operator_keys import KEY_BYTES, OperatorKeys, Scope, TrustedKey, key_id_of
from waybill.identity.pem_keys import private_key_of
from waybill.settings import file_fault, load, open_file, parse

# Files of operators' keys: private keys, and the list of trusted public keys.

_OWNER_ONLY = 0o600
_MAX_KEY_BYTES = 8192


class NewOperator(NamedTuple):
    """A private key, and its entry in a file of trusted keys."""

    key: OperatorKey
    trusted: TrustedKey


def write_operator(path: Path, operator: NewOperator) -> None:
    """Write the private key, readable by its owner only. Raises OperatorKeyRefused if the file exists; OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not create_durably(path, operator.key.private_pem(), mode=_OWNER_ONLY):
        raise OperatorKeyRefused(f"{path}: the file exists, and a key is never replaced: use another name")


def trust_operator(path: Path, operator: NewOperator) -> None:
    """Add the public key to a file of trusted keys, which is created if missing. Raises SettingsError, OSError."""
    # Two commands that add a key at once must not overwrite each other.
    with alone_in(path.parent):
        known = dict(read_operators(path).keys) if path.exists() else {}
        text = operators_toml(known | {operator.key.key_id: operator.trusted})
        # Checked before it is written: an invalid file would stop every check on this machine.
        parse(OperatorKeys, text, str(path))
        replace_durably(path, text.encode())


def read_operator_key(path: Path) -> OperatorKey:
    """Raises OperatorKeyRefused."""
    try:
        with open_file(path) as file:
            return OperatorKey.from_pem(file.read(_MAX_KEY_BYTES))
    except OSError as error:
        raise OperatorKeyRefused(f"{path}: cannot be read: {file_fault(error)}") from error
    except OperatorKeyRefused as refused:
        raise OperatorKeyRefused(f"{path}: {refused}") from refused


def read_operators(path: Path) -> OperatorKeys:
    """Raises SettingsError."""
    return load(OperatorKeys, path)


def operators_toml(keys: Mapping[str, TrustedKey]) -> str:
    return "\n".join(_table(key_id, key) for key_id, key in keys.items())


def trusted_key(
    key: OperatorKey,
    name: str,
    *,
    tenants: tuple[str, ...],
    kinds: tuple[str, ...],
    accounts: tuple[str, ...] = (),
    valid_from: datetime | None = None,
    valid_until: datetime | None = None,
) -> TrustedKey:
    """The entry of a key in a file of trusted keys. Raises pydantic's ValidationError."""
    return TrustedKey(
        name=name,
        public=base64.b64encode(key.public).decode(),
        tenants=tenants,
        kinds=kinds,
        accounts=accounts,
        valid_from=valid_from,
        valid_until=valid_until,
    )


def _table(key_id: str, key: TrustedKey) -> str:
    # The patterns of these values need no escaping in TOML.
    lists = {"tenants": key.tenants, "accounts": key.accounts, "kinds": key.kinds}
    moments = {"valid_from": key.valid_from, "valid_until": key.valid_until}
    lines = [f"[keys.{key_id}]", f'name = "{key.name}"', f'public = "{key.public}"']
    lines += [f"{name} = {json.dumps(some)}" for name, some in lists.items() if some]
    lines += [f"{name} = {moment.isoformat()}" for name, moment in moments.items() if moment is not None]
    return "\n".join(lines) + "\n"


# Signed settings of one device: the signature is a TOML comment in the first line. Pure.

MAX_VERSION = 10**15 - 1
"""A version has at most 15 digits; as milliseconds since 1970 they last until the year 33658."""
SETTINGS_KIND = "settings"
"""The kind that a key must have."""
_WHAT = "waybill push 1"
_HEADER = re.compile(
    r"#waybill-push 1 device=([A-Za-z0-9._/-]{3,64}) version=([0-9]{1,15}) signer=([0-9a-f]{16})"
    r" signature=([A-Za-z0-9+/=]{88})"
)
_MAX_HEADER = 300


class SignedPush(NamedTuple):
    """The parts of a signed push, unchecked."""

    device: str
    version: int
    signer: str
    signature: bytes
    settings: bytes


def sign_push(key: OperatorKey, device: str, version: int, settings: bytes) -> bytes:
    """Signed settings for a device. Raises ValueError for an invalid version."""
    if not 0 < version <= MAX_VERSION:
        raise ValueError(f"the version {version} is not between 1 and {MAX_VERSION}")
    signature = encoded_signature(key.sign(_WHAT, _parts(device, version, settings)))
    header = f"#waybill-push 1 device={device} version={version} signer={key.key_id} signature={signature}\n"
    return header.encode() + settings


def read_signed_push(text: bytes) -> SignedPush:
    """The parts of a signed push. Raises SignatureRefused without a valid first line."""
    # Bounded, because a hostile text may be one line of megabytes.
    header, _, _ = text[:_MAX_HEADER].partition(b"\n")
    matched = _HEADER.fullmatch(header.decode("ascii", "replace"))
    if matched is None:
        raise SignatureRefused(SignatureFault.UNSIGNED, "its first line is not that of a signed push")
    device, version, signer, signature = matched.groups()
    return SignedPush(device, int(version), signer, signature_of(signature), text[len(header) + 1 :])


def verify_push(keys: OperatorKeys, push: SignedPush, device: str, moment: datetime) -> TrustedKey:
    """The key that signed settings for this device, if it is valid now and has the right. Raises SignatureRefused."""
    if push.device != device:
        raise SignatureRefused(SignatureFault.FOR_ANOTHER, f"it is for {push.device}, and this is {device}")
    name = parse_name(device)
    tenants = frozenset({device.partition("/")[0]} if name is not None else set[str]())
    scope = Scope(SETTINGS_KIND, tenants, is_shared=not tenants)
    # The version is signed too: an old push cannot become a new one.
    parts = _parts(push.device, push.version, push.settings)
    return keys.verify(push.signer, push.signature, _WHAT, parts, scope=scope, moment=moment)


def _parts(device: str, version: int, settings: bytes) -> list[bytes]:
    return [device.encode(), str(version).encode(), settings]


# Ids of publications, which put them into one order.
#
# An id is a UUID of version 7 (RFC 9562), as text: 48 bits of time in milliseconds, a counter of 12 bits, 62 random
# bits. Its text sorts in the order of the ids. The time is the publisher's, unless a known publication is later: then
# the id follows that one, so that a correction always comes after what it corrects. Readers refuse an id that is more
# than five minutes ahead of their clock.

ID_PROPERTY: Final = "publication_id"
"""The property of a message that has its id."""
RANDOM_BITS: Final = 62
MAX_AHEAD_MS: Final = 300_000
"""An id that is further ahead comes from a wrong clock, and is refused."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MS: Final = 253_402_300_799_000
_COUNTER_BITS: Final = 12
_ORDER_BITS: Final = 60
_UUID_VERSION: Final = 7
_UUID_VARIANT: Final = 0b10


def next_publication_id(previous: str | None, now_ms: int, random_bits: int) -> str:
    """An id after `previous` (None: the first one). Raises ValueError for an invalid `previous`, or if none comes after
    it.
    """
    order = now_ms << _COUNTER_BITS
    if previous is not None:
        if not is_publication_id(previous):
            raise ValueError(f"{previous!r} is not a publication id")
        order = max(order, _order_of(UUID(previous)) + 1)
    if not 0 <= order < 1 << _ORDER_BITS:
        raise ValueError(f"no publication id comes after {previous} at {now_ms} ms")
    time, counter = order >> _COUNTER_BITS, order & ((1 << _COUNTER_BITS) - 1)
    assert 0 <= random_bits < 1 << RANDOM_BITS
    return str(UUID(int=time << 80 | _UUID_VERSION << 76 | counter << 64 | _UUID_VARIANT << RANDOM_BITS | random_bits))


def is_publication_id(text: str | None) -> bool:
    """Whether a text is an id in the form that sorts."""
    try:
        made = UUID(text)
    except (ValueError, TypeError, AttributeError):
        return False
    return str(made) == text and made.version == _UUID_VERSION


def is_far_ahead(publication_id: str, now_ms: float) -> bool:
    """Whether the time of an id is more than five minutes after `now_ms`."""
    return drawn_ms(publication_id) > now_ms + MAX_AHEAD_MS


def drawn_ms(publication_id: str) -> int:
    """The time of an id, in milliseconds since 1970."""
    return UUID(publication_id).int >> 80


def drawn_at(publication_id: str) -> datetime:
    """The time of an id, at most the end of the year 9999."""
    return _EPOCH + timedelta(milliseconds=min(drawn_ms(publication_id), _LAST_MS))


def _order_of(made: UUID) -> int:
    return (made.int >> 80) << _COUNTER_BITS | made.int >> 64 & ((1 << _COUNTER_BITS) - 1)


# Keys, and signatures of parts and of publications. Pure.

SIGNATURE_BYTES = 64
MAX_REASON_CHARACTERS = 500
REASON, SIGNATURE, SIGNER = "reason", "signature", "signer"
"""The properties of a message: the reason, the signature in base64, and the id of the key."""
_PUBLICATION = "waybill publication 1"
_LENGTH_BYTES = 8
# a key has a hundred
_MAX_FILE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class OperatorKey:
    private: Ed25519PrivateKey

    @classmethod
    def generate(cls) -> OperatorKey:
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_pem(cls, pem: bytes) -> OperatorKey:
        """Raises OperatorKeyRefused."""
        try:
            if len(pem) > _MAX_FILE_BYTES:
                raise OperatorKeyRefused(f"it has more than {_MAX_FILE_BYTES} bytes, so it is not a key")
            key = private_key_of(pem)
        except ValueError as error:
            raise OperatorKeyRefused(f"it is {error}") from error
        if not isinstance(key, Ed25519PrivateKey):
            raise OperatorKeyRefused(
                "it is a private key of another kind; make one with `waybill push key NAME --tenant TENANT`"
            )
        return cls(key)

    def private_pem(self) -> bytes:
        pkcs8, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        return self.private.private_bytes(serialization.Encoding.PEM, pkcs8, plain)

    @property
    def public(self) -> bytes:
        raw = serialization.Encoding.Raw, serialization.PublicFormat.Raw
        return self.private.public_key().public_bytes(*raw)

    @property
    def key_id(self) -> str:
        return key_id_of(self.public)

    def sign(self, what: str, parts: Sequence[bytes]) -> bytes:
        return self.private.sign(_signed_bytes(what, parts))


def is_signature(public: bytes, what: str, parts: Sequence[bytes], signature: bytes) -> bool:
    """Whether the key of a raw public key signed parts as `what`."""
    # The library raises for other lengths, which the sender controls.
    if len(public) != KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, _signed_bytes(what, parts))
    except InvalidSignature:
        return False
    return True


class Publication(NamedTuple):
    """A publication to a compacted topic: its kind, the key of its message, and the body."""

    kind: str
    key: str
    body: bytes


class PublishedBy(NamedTuple):
    """The signer of a publication: the key's id and name, and the stated reason."""

    signer: str
    name: str
    reason: str


def sign_publication(key: OperatorKey, publication: Publication, publication_id: str, reason: str) -> dict[str, str]:
    """The signed properties of a publication's message. Raises ValueError for an invalid reason."""
    assert is_publication_id(publication_id)
    checked_reason(reason)
    signature = key.sign(_PUBLICATION, _parts_signatures(publication, publication_id, reason))
    signed = {SIGNER: key.key_id, SIGNATURE: encoded_signature(signature), REASON: reason}
    return {ID_PROPERTY: publication_id, **signed}


def checked_reason(reason: str) -> str:
    """Raises ValueError for an empty reason, and for one that is not one line or too long."""
    if not reason.strip() or len(reason) > MAX_REASON_CHARACTERS or not reason.isprintable():
        raise ValueError(f"the reason is one line of 1 to {MAX_REASON_CHARACTERS} characters that can be printed")
    return reason


def verify_publication(
    keys: OperatorKeys, publication: Publication, properties: Mapping[str, str], scope: Scope
) -> PublishedBy:
    """The signer, if its key is trusted, was valid at the id's time and has the right. Raises SignatureRefused.

    The id is signed, so a publication stays valid when its key expires.
    """
    signer, publication_id, reason = (properties.get(name, "") for name in (SIGNER, ID_PROPERTY, REASON))
    signature = signature_of(properties.get(SIGNATURE, ""))
    if not is_publication_id(publication_id):
        raise SignatureRefused(SignatureFault.UNSIGNED, f"its property {ID_PROPERTY} is not the id of a publication")
    # By the time of its id, not by the reader's clock: every reader decides alike.
    parts = _parts_signatures(publication, publication_id, reason)
    moment = drawn_at(publication_id)
    key = keys.verify(signer, signature, _PUBLICATION, parts, scope=scope, moment=moment)
    return PublishedBy(signer, key.name, reason)


def encoded_signature(signature: bytes) -> str:
    return base64.b64encode(signature).decode()


def signature_of(text: str) -> bytes:
    """Raises SignatureRefused for a text that is not a signature."""
    try:
        signature = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        signature = b""
    # Only one text for each signature, so that equal messages are equal bytes.
    if len(signature) != SIGNATURE_BYTES or encoded_signature(signature) != text:
        raise SignatureRefused(SignatureFault.UNSIGNED, "it carries no signature")
    return signature


def _parts_signatures(publication: Publication, publication_id: str, reason: str) -> list[bytes]:
    kind, key, body = publication
    return [kind.encode(), key.encode(), publication_id.encode(), reason.encode(), body]


def _signed_bytes(what: str, parts: Sequence[bytes]) -> bytes:
    # Lengths separate the parts, and the word for the kind comes first.
    return b"".join(len(part).to_bytes(_LENGTH_BYTES, "big") + part for part in (what.encode(), *parts))
