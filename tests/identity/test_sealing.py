"""What is sealed for a tenant opens with that tenant's key, as what it was, and otherwise not at all."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis import given
from hypothesis import strategies as st

from waybill.identity.errors import SealingKeyError, Unsealable
from waybill.identity.sealing import OVERHEAD_BYTES, Sealer, Unsealer, is_sealed

ACME, OTHER, EPHEMERAL = (X25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in (1, 2, 3))
NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789.-", min_size=1, max_size=63)


def sealer(tenant: str = "acme", region: str = "eu") -> Sealer:
    return Sealer(ACME.public_key(), EPHEMERAL, tenant, region)


@given(st.binary(max_size=5000), NAMES, NAMES)
def test_what_was_sealed_opens_as_what_it_was(batch, tenant, region):
    sealed = sealer(tenant, region).seal(batch)
    assert is_sealed(sealed)
    assert len(sealed) == len(batch) + OVERHEAD_BYTES
    assert Unsealer([OTHER, ACME]).unseal(sealed, tenant, region) == batch


@given(st.binary(min_size=1, max_size=200), st.data())
def test_one_changed_bit_anywhere_is_noticed(batch, data):
    sealed = sealer().seal(batch)
    at = data.draw(st.integers(0, len(sealed) * 8 - 1))
    changed = bytearray(sealed)
    changed[at // 8] ^= 1 << at % 8
    with pytest.raises(Unsealable):
        Unsealer([ACME]).unseal(bytes(changed), "acme", "eu")


@given(NAMES, NAMES, NAMES, NAMES)
def test_what_is_one_tenants_does_not_open_as_anothers(tenant, region, other, elsewhere):
    sealed = sealer(tenant, region).seal(b"batch")
    if (tenant, region) != (other, elsewhere):
        with pytest.raises(Unsealable, match="altered"):
            Unsealer([ACME]).unseal(sealed, other, elsewhere)


def test_an_ephemeral_key_of_small_order_is_refused():
    sealed = sealer().seal(b"batch")
    with pytest.raises(Unsealable, match="ephemeral"):
        Unsealer([ACME]).unseal(sealed[:12] + bytes(32) + sealed[44:], "acme", "eu")


def test_no_number_is_used_twice():
    one = sealer()
    assert len({one.seal(b"the same")[44:56] for _ in range(1000)}) == 1000


def test_a_folder_without_a_usable_key_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(SealingKeyError, match="no private key in"):
        Unsealer.of_folder(tmp_path)
    file = tmp_path / "one.key"
    file.write_bytes(b"nothing")
    with pytest.raises(SealingKeyError, match=r"one\.key"):
        Unsealer.of_folder(tmp_path)
    file.write_bytes(generate_private_key(SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(SealingKeyError, match="not an X25519 key"):
        Unsealer.of_folder(tmp_path)
