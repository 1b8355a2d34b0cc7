"""Signatures of operators: Ed25519 (RFC 8032) over parts, of which none can pass for another. Pure.

What is signed is a word for what it is, then each part, everything behind its length: the same bytes signed as one
thing are no signature of another, and no byte can move from one part into the next.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from waybill.identity.errors import OperatorKeyRefused, SignatureFault, SignatureRefused
from waybill.identity.operator_keys import KEY_BYTES, OperatorKeys, Scope, key_id_of
from waybill.identity.pem_keys import private_key_of
from waybill.identity.publication_id import PROPERTY, drawn_at, is_publication_id

__all__ = [
    "MAX_REASON_CHARACTERS",
    "REASON",
    "SIGNATURE",
    "SIGNATURE_BYTES",
    "SIGNER",
    "OperatorKey",
    "Publication",
    "PublishedBy",
    "checked_reason",
    "encoded_signature",
    "is_signature",
    "sign_publication",
    "signature_of",
    "verify_publication",
]

SIGNATURE_BYTES = 64
MAX_REASON_CHARACTERS = 500
REASON, SIGNATURE, SIGNER = "reason", "signature", "signer"
"""Under which properties a message carries why it was published, the signature in base64, and the id of the key."""
_PUBLICATION = "waybill publication 1"
_LENGTH_BYTES = 8
# a key has a hundred
_MAX_FILE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class OperatorKey:
    """A private key of somebody who may publish settings and reference data."""

    private: Ed25519PrivateKey

    @classmethod
    def generate(cls) -> OperatorKey:
        """A new key."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_pem(cls, pem: bytes) -> OperatorKey:
        """The key of a file. Raises OperatorKeyRefused."""
        try:
            if len(pem) > _MAX_FILE_BYTES:
                raise OperatorKeyRefused(f"it has more than {_MAX_FILE_BYTES} bytes, which is no key")
            key = private_key_of(pem)
        except ValueError as error:
            raise OperatorKeyRefused(f"it is {error}") from error
        if not isinstance(key, Ed25519PrivateKey):
            raise OperatorKeyRefused(
                "it is a private key of another kind; make one with `waybill push key NAME --tenant TENANT`"
            )
        return cls(key)

    def private_pem(self) -> bytes:
        """The key as a file holds it; whoever has it can sign."""
        pkcs8, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        return self.private.private_bytes(serialization.Encoding.PEM, pkcs8, plain)

    @property
    def public(self) -> bytes:
        """The raw public key."""
        raw = serialization.Encoding.Raw, serialization.PublicFormat.Raw
        return self.private.public_key().public_bytes(*raw)

    @property
    def key_id(self) -> str:
        """What a signature names its key by."""
        return key_id_of(self.public)

    def sign(self, what: str, parts: Sequence[bytes]) -> bytes:
        """The signature of parts as `what`."""
        return self.private.sign(_signed_bytes(what, parts))


def is_signature(public: bytes, what: str, parts: Sequence[bytes], signature: bytes) -> bool:
    """Whether the key of a raw public key signed parts as `what`."""
    # the library raises for either, and whoever sends them decides how long they are
    if len(public) != KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, _signed_bytes(what, parts))
    except InvalidSignature:
        return False
    return True


class Publication(NamedTuple):
    """What is published to a compacted topic: what kind of thing it is, the key of its message, and the body."""

    kind: str
    key: str
    body: bytes


class PublishedBy(NamedTuple):
    """Who published something, by the trusted keys: the key's id and name; and why, in their words."""

    signer: str
    name: str
    reason: str


def sign_publication(key: OperatorKey, publication: Publication, publication_id: str, reason: str) -> dict[str, str]:
    """The properties of a publication's message, which show who published it, when and why.

    Raises what `checked_reason` raises.
    """
    assert is_publication_id(publication_id)
    checked_reason(reason)
    signature = key.sign(_PUBLICATION, _parts(publication, publication_id, reason))
    signed = {SIGNER: key.key_id, SIGNATURE: encoded_signature(signature), REASON: reason}
    return {PROPERTY: publication_id, **signed}


def checked_reason(reason: str) -> str:
    """The reason of a publication. Raises ValueError if it says nothing, is not one line, or too long."""
    if not reason.strip() or len(reason) > MAX_REASON_CHARACTERS or not reason.isprintable():
        raise ValueError(f"the reason is one line of 1 to {MAX_REASON_CHARACTERS} characters that can be printed")
    return reason


def verify_publication(
    keys: OperatorKeys, publication: Publication, properties: Mapping[str, str], scope: Scope
) -> PublishedBy:
    """Who published something, if that key is trusted, was valid then and may speak for it. Raises SignatureRefused.

    The moment of a publication is that of its id, which is signed: what was right when it was published stays so when
    the key's time is over.
    """
    signer, publication_id, reason = (properties.get(name, "") for name in (SIGNER, PROPERTY, REASON))
    signature = signature_of(properties.get(SIGNATURE, ""))
    if not is_publication_id(publication_id):
        raise SignatureRefused(SignatureFault.UNSIGNED, f"its property {PROPERTY} is not the id of a publication")
    # by the id that it has, not by the clock of whoever reads: every reader comes to the same judgement
    parts = _parts(publication, publication_id, reason)
    moment = drawn_at(publication_id)
    key = keys.verify(signer, signature, _PUBLICATION, parts, scope=scope, moment=moment)
    return PublishedBy(signer, key.name, reason)


def encoded_signature(signature: bytes) -> str:
    """A signature as text."""
    return base64.b64encode(signature).decode()


def signature_of(text: str) -> bytes:
    """A signature from its text. Raises SignatureRefused for what is none."""
    try:
        signature = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        signature = b""
    # One text for each signature: of two messages with the same facts nobody need ask which one holds.
    if len(signature) != SIGNATURE_BYTES or encoded_signature(signature) != text:
        raise SignatureRefused(SignatureFault.UNSIGNED, "it carries no signature")
    return signature


def _parts(publication: Publication, publication_id: str, reason: str) -> list[bytes]:
    kind, key, body = publication
    return [kind.encode(), key.encode(), publication_id.encode(), reason.encode(), body]


def _signed_bytes(what: str, parts: Sequence[bytes]) -> bytes:
    # Each with its length: else the end of one part could be read as the beginning of the next.
    # The word comes first: what was signed as one thing is never good as another.
    return b"".join(len(part).to_bytes(_LENGTH_BYTES, "big") + part for part in (what.encode(), *parts))
