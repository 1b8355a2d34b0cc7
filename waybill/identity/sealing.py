"""Sealed batches: what a gateway encrypts for one tenant, and only the holder of that tenant's key can open.

    b"WBS1" | key id (8) | ephemeral public key (32) | number (12) | AES-256-GCM of the batch, with its tag (16)

The AES key is HKDF-SHA256 of the X25519 agreement between an ephemeral key, made anew by each gateway process, and the
tenant's public key; both public keys are in its `info` (as in ECIES, SEC 1 v2, 5.1, and RFC 9180, 4.1). The number
counts up within one ephemeral key, so no nonce is used twice. Tenant and region are authenticated with it: a sealed
batch of one tenant does not open as that of another. Why this and not Pulsar's own encryption: `docs/decisions/`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from waybill.identity.errors import SealingKeyError, Unsealable
from waybill.identity.pem_keys import private_key_of, public_key_of
from waybill.settings import open_file

_MAGIC: Final = b"WBS1"
_ID_BYTES, _KEY_BYTES, _NUMBER_BYTES, _TAG_BYTES = 8, 32, 12, 16
_HEAD_BYTES: Final = len(_MAGIC) + _ID_BYTES + _KEY_BYTES + _NUMBER_BYTES
OVERHEAD_BYTES: Final = _HEAD_BYTES + _TAG_BYTES
"""The additional bytes of a sealed batch."""
_CONTEXT: Final = b"waybill sealed batch 1"
_MAX_KEYS: Final = 1000
"""Private keys of one folder."""
_MAX_PEM_BYTES: Final = 16 << 10
_MAX_AGREEMENTS: Final = 1024
"""Cached key agreements with gateway processes; a new agreement takes 50 us."""


class Sealer:
    """Seals the batches of one tenant in one region. One for each process, because it counts its nonces."""

    def __init__(self, public_key: X25519PublicKey, ephemeral: X25519PrivateKey, tenant: str, region: str) -> None:
        """`ephemeral` must not be used for anything else."""
        theirs, ours = public_key.public_bytes_raw(), ephemeral.public_key().public_bytes_raw()
        self._cipher = AESGCM(_derived(ephemeral.exchange(public_key), ours, theirs))
        self._head = _MAGIC + _key_id(theirs) + ours
        self._bound = _bound(tenant, region)
        self._numbers = count(1)

    def seal(self, batch: bytes) -> bytes:
        # The nonce is counted, not random: a repeated one would reveal both batches.
        number = next(self._numbers).to_bytes(_NUMBER_BYTES, "big")
        return b"".join((self._head, number, self._cipher.encrypt(number, batch, self._bound)))


class Unsealer:
    """Opens batches that were sealed for these private keys; keeps a bounded number of key agreements."""

    def __init__(self, keys: Iterable[X25519PrivateKey] = ()) -> None:
        self._keys: Mapping[bytes, X25519PrivateKey] = {
            _key_id(key.public_key().public_bytes_raw()): key for key in keys
        }
        self._ciphers: OrderedDict[bytes, AESGCM] = OrderedDict()

    @classmethod
    def of_folder(cls, folder: Path | None) -> Unsealer:
        """With every private key in `*.key` of a folder; None: with no key. Raises SealingKeyError."""
        files = sorted(folder.glob("*.key")) if folder is not None else []
        # With a wrong path all sealed batches would go to quarantine.
        if folder is not None and not files:
            raise SealingKeyError(f"{folder}: no private key in *.key")
        if len(files) > _MAX_KEYS:
            raise SealingKeyError(f"{folder}: {len(files)} keys, at most {_MAX_KEYS} are taken")
        return cls([read_private_key(file) for file in files])

    def unseal(self, sealed: bytes, tenant: str, region: str) -> bytes:
        """The batch. Raises Unsealable if it is cut short, altered, of another tenant, or its key is missing."""
        if len(sealed) < OVERHEAD_BYTES or not is_sealed(sealed):
            raise Unsealable(f"it is not a sealed batch, or is truncated: {len(sealed)} bytes")
        number = sealed[_HEAD_BYTES - _NUMBER_BYTES : _HEAD_BYTES]
        cipher = self._cipher(sealed[len(_MAGIC) : _HEAD_BYTES - _NUMBER_BYTES])
        try:
            return cipher.decrypt(number, sealed[_HEAD_BYTES:], _bound(tenant, region))
        except InvalidTag as error:
            raise Unsealable(f"it was altered, or does not belong to tenant {tenant!r} in region {region!r}") from error

    def _cipher(self, head: bytes) -> AESGCM:
        """`head`: the id of the tenant's key and the ephemeral public key of a gateway process."""
        known = self._ciphers.get(head)
        if known is not None:
            self._ciphers.move_to_end(head)
            return known
        key_id, ephemeral = head[:_ID_BYTES], head[_ID_BYTES:]
        key = self._keys.get(key_id)
        if key is None:
            raise Unsealable(f"it is sealed for the key {key_id.hex()}, which is not here")
        try:
            agreed = key.exchange(X25519PublicKey.from_public_bytes(ephemeral))
        except ValueError as error:  # a point of small order
            raise Unsealable(f"its ephemeral key cannot be used: {error}") from error
        made = AESGCM(_derived(agreed, ephemeral, key.public_key().public_bytes_raw()))
        self._ciphers[head] = made
        if len(self._ciphers) > _MAX_AGREEMENTS:
            self._ciphers.popitem(last=False)
        return made


def is_sealed(payload: bytes) -> bool:
    """Whether it begins like a sealed batch; no plain batch does."""
    return payload.startswith(_MAGIC)


def read_public_key(file: Path) -> X25519PublicKey:
    """A tenant's public key (PEM, X25519). Raises SealingKeyError."""
    key: X25519PublicKey = _read_key(file, public_key_of, X25519PublicKey)
    return key


def read_private_key(file: Path) -> X25519PrivateKey:
    """A tenant's private key (PEM, X25519). Raises SealingKeyError."""
    key: X25519PrivateKey = _read_key(file, private_key_of, X25519PrivateKey)
    return key


def _read_key(file: Path, read: Callable[[bytes], object], kind: Any) -> Any:
    try:
        with open_file(file) as opened:
            key = read(opened.read(_MAX_PEM_BYTES))
    except (OSError, ValueError) as error:
        raise SealingKeyError(f"{file}: cannot be read: {error}") from error
    if not isinstance(key, kind):
        raise SealingKeyError(f"{file}: is not an X25519 key: make one with `waybill pki sealing TENANT`")
    return key


def _key_id(public: bytes) -> bytes:
    # Short, because it only selects the key.
    return sha256(public).digest()[:_ID_BYTES]


def _derived(agreed: bytes, ephemeral: bytes, recipient: bytes) -> bytes:
    # Without a salt, as RFC 5869 allows: the agreement with an ephemeral key is unique.
    return HKDF(SHA256(), _KEY_BYTES, None, _CONTEXT + ephemeral + recipient).derive(agreed)


def _bound(tenant: str, region: str) -> bytes:
    """The authenticated data beside the batch. Lengths separate the names."""
    try:
        return b"".join(len(name).to_bytes(2, "big") + name for name in (_CONTEXT, tenant.encode(), region.encode()))
    except (OverflowError, UnicodeEncodeError) as error:  # names may come from strangers
        raise Unsealable(f"the name of its tenant or region is none: {error!s:.100}") from error
