"""The operators' public keys that are trusted here, and their rights.

    [keys.4be1c87c8f0ee1a2]
    name = "anna"
    public = "8v0mJ1c…"                      # 32 bytes in base64
    tenants = ["acme"]                       # or ["*"]
    accounts = ["acme", "acme-*"]            # of billing; only needed where tenants are named
    kinds = ["settings", "device"]           # or ["*"]
    valid_until = 2027-01-01T00:00:00Z

Several keys may be valid at once, so that a new one can replace another. A lost key is removed from the file.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Collection
from datetime import datetime
from typing import Annotated, NamedTuple, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from waybill.identity.errors import SignatureFault, SignatureRefused
from waybill.identity.names import Moment
from waybill.record.record import DEVICE_PATTERN
from waybill.settings import Settings

ANY = "*"
KINDS = (
    "settings",
    "device",
    "enrolment",
    "account",
    "alert_rule",
    "calendar",
    "exchange_rate",
    "fence",
    "legal_entity",
    "tariff",
)
"""The kinds of a key. A file may also name kinds of a later version."""
MAX_KEYS = 100
KEY_BYTES = 32
"""Of a raw public key."""
_ID_DIGITS = 16
_NAME = rf"^(\*|{DEVICE_PATTERN.pattern})$"


def key_id_of(public: bytes) -> str:
    """The first 16 hex digits of the SHA-256 of the raw public key; signatures name their key by it."""
    return hashlib.sha256(public).hexdigest()[:_ID_DIGITS]


class Scope(NamedTuple):
    """The subject of a signed thing: its key must have the right to all of it.

    `tenants` and `accounts`: those that it names. `is_shared`: it concerns every tenant, so only a key for all may sign
    it.
    """

    kind: str
    tenants: frozenset[str] = frozenset()
    accounts: frozenset[str] = frozenset()
    is_shared: bool = False


def _raw(text: str) -> str:
    try:
        raw = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"it is not base64: {error}") from error
    if len(raw) != KEY_BYTES:
        raise ValueError(f"an Ed25519 key has {KEY_BYTES} bytes, this one {len(raw)}")
    return text


_Tenant = Annotated[str, StringConstraints(pattern=_NAME)]
_Account = Annotated[str, StringConstraints(pattern=r"^[a-z0-9._-]{0,63}\*?$", min_length=1)]
_Kind = Annotated[str, StringConstraints(pattern=r"^(\*|[a-z][a-z_]{0,30})$")]


class TrustedKey(Settings):
    """A public key. `accounts`: account ids, or prefixes with a `*`, which it may publish or name as a parent."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._@-]{0,62}$")]
    public: Annotated[str, StringConstraints(max_length=64), AfterValidator(_raw)]
    tenants: Annotated[tuple[_Tenant, ...], Field(min_length=1, max_length=1000)]
    kinds: Annotated[tuple[_Kind, ...], Field(min_length=1, max_length=50)] = (ANY,)
    accounts: Annotated[tuple[_Account, ...], Field(max_length=1000)] = ()
    valid_from: Moment | None = None
    valid_until: Moment | None = None

    @property
    def raw(self) -> bytes:
        return base64.b64decode(self.public)

    @property
    def speaks_for_all(self) -> bool:
        return ANY in self.tenants

    def is_valid_at(self, moment: datetime) -> bool:
        begins, ends = self.valid_from, self.valid_until
        return (begins is None or begins <= moment) and (ends is None or moment < ends)

    def check_right(self, scope: Scope) -> None:
        """Raises SignatureRefused if the key has no right to this scope."""
        if ANY not in self.kinds and scope.kind not in self.kinds:
            raise self._no_right(f"{scope.kind!r}; it may for {', '.join(self.kinds)}")
        if self.speaks_for_all:
            return
        if scope.is_shared:
            raise self._no_right(f"what concerns every tenant, as each {scope.kind} does: that needs tenants = ['*']")
        if others := sorted(scope.tenants - {*self.tenants}):
            raise self._no_right(f"tenant {others[0]!r}")
        if others := sorted(one for one in scope.accounts if not self._may_account(one)):
            raise self._no_right(f"account {others[0]!r}; list it under `accounts` of the key")

    def _may_account(self, account: str) -> bool:
        return any(account.startswith(one[:-1]) if one.endswith(ANY) else account == one for one in self.accounts)

    def _no_right(self, what: str) -> SignatureRefused:
        return SignatureRefused(SignatureFault.NO_RIGHT, f"the key of {self.name} may not speak for {what}")


class OperatorKeys(Settings):
    """The trusted keys by their ids. Read it with `settings.load`."""

    keys: Annotated[dict[str, TrustedKey], Field(min_length=1, max_length=MAX_KEYS)]

    @model_validator(mode="after")
    def _each_under_its_id(self) -> Self:
        for name, key in self.keys.items():
            if (right := key_id_of(key.raw)) != name:
                raise ValueError(f"keys.{name}: the id of this public key is {right}")
        return self

    def verify(
        self, signer: str, signature: bytes, what: str, parts: Collection[bytes], *, scope: Scope, moment: datetime
    ) -> TrustedKey:
        """The key that signed parts as `what`, if it was valid at the moment and has the right. Raises
        SignatureRefused.
        """
        from waybill.identity.signatures import is_signature  # noqa: PLC0415 - who is pushed nothing needs no cryptography

        key = self._known(signer)
        if not is_signature(key.raw, what, [*parts], signature):
            raise SignatureRefused(SignatureFault.ALTERED, f"the key of {key.name} did not sign this content")
        # Only after the signature: forged content must not reveal the key's validity and rights.
        return self.check(signer, scope=scope, moment=moment)

    def check(self, signer: str, *, scope: Scope, moment: datetime) -> TrustedKey:
        """The key of that id, if it is valid at the moment and has the right. Raises SignatureRefused."""
        key = self._known(signer)
        if not key.is_valid_at(moment):
            raise SignatureRefused(
                SignatureFault.NOT_VALID_THEN,
                f"the key of {key.name} is valid {_span(key)}, but the change is dated {moment:%Y-%m-%d %H:%M} UTC",
            )
        key.check_right(scope)
        return key

    def _known(self, signer: str) -> TrustedKey:
        key = self.keys.get(signer)
        if key is None:
            raise SignatureRefused(SignatureFault.UNKNOWN_KEY, f"no key {signer[:64]!r} is trusted here")
        return key


def _span(key: TrustedKey) -> str:
    begins = f"from {key.valid_from:%Y-%m-%d %H:%M} " if key.valid_from else ""
    return begins + (f"until {key.valid_until:%Y-%m-%d %H:%M}" if key.valid_until else "for good")
