"""Sealed batches, as the centre opens them."""

from __future__ import annotations

from collections.abc import Iterable

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from tests.fuzz.bounds import check_refusal
from waybill.identity.errors import Unsealable
from waybill.identity.sealing import OVERHEAD_BYTES, Sealer, Unsealer

THEIRS, OURS = (X25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in (1, 2))
BATCH = b"WB" * 50
_KEYS_OFFSET = 12


def seeds() -> Iterable[bytes]:
    """A sealed batch, and such as are cut, altered, for another key, or of a point of small order."""
    sealed = Sealer(THEIRS.public_key(), OURS, "acme", "eu").seal(BATCH)
    yield sealed
    yield sealed[: OVERHEAD_BYTES - 1]
    yield sealed[:-1]
    yield sealed[:4] + bytes(8) + sealed[12:]
    yield sealed[:_KEYS_OFFSET] + bytes(32) + sealed[_KEYS_OFFSET + 32 :]
    yield Sealer(THEIRS.public_key(), OURS, "other", "eu").seal(bytes(60_000))


def judge(data: bytes) -> None:
    """What opens is what was sealed; everything else is Unsealable."""
    try:
        opened = Unsealer([THEIRS]).unseal(data, "acme", "eu")
    except Unsealable as error:
        check_refusal(error)
        return
    assert opened == BATCH
