"""A request is believed only if its sender has the key, and the key is one that every TLS library takes."""

from __future__ import annotations

import base64

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from waybill.identity.authority import MAX_REQUEST_BYTES, KeyPair, make_request, read_request
from waybill.identity.errors import KeyRefused, RequestFault, RequestRefused

KEY = KeyPair.generate()
REQUEST = make_request(KEY, "acme/bus-1")
DER = x509.load_pem_x509_csr(REQUEST).public_bytes(serialization.Encoding.DER)


def in_pem(der: bytes) -> bytes:
    kind = b"CERTIFICATE REQUEST"
    return b"-----BEGIN " + kind + b"-----\n" + base64.encodebytes(der) + b"-----END " + kind + b"-----\n"


def refused(pem: bytes) -> RequestFault:
    with pytest.raises(RequestRefused) as caught:
        read_request(pem)
    return caught.value.reason


def test_a_request_says_its_name_and_its_key() -> None:
    read = read_request(REQUEST)
    assert read.common_name == "acme/bus-1"
    assert read.public_key == KEY.public


@pytest.mark.parametrize("key", [ec.generate_private_key(ec.SECP384R1()), rsa.generate_private_key(65537, 2048)])
def test_a_key_of_a_tpm_is_taken(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> None:
    pair = KeyPair.from_pem(KeyPair(key).private_pem())
    assert read_request(make_request(pair, "acme/bus-1")).public_key == key.public_key()


@pytest.mark.parametrize(
    "key",
    [
        rsa.generate_private_key(65537, 1024),  # noqa: S505 - it is refused
        ec.generate_private_key(ec.SECP521R1()),
        ec.generate_private_key(ec.SECP256K1()),
        ed25519.Ed25519PrivateKey.generate(),
    ],
    ids=["rsa-1024", "p-521", "secp256k1", "ed25519"],
)
def test_another_key_is_refused(
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey,
) -> None:
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "acme/bus-1")])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, algorithm)
    assert refused(request.public_bytes(serialization.Encoding.PEM)) is RequestFault.KEY_NOT_TAKEN
    with pytest.raises(KeyRefused):
        KeyPair.from_pem(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )


def test_a_request_signed_by_another_key_is_refused() -> None:
    changed = bytearray(DER)
    changed[-1] ^= 1
    assert refused(in_pem(bytes(changed))) is RequestFault.BAD_SIGNATURE


def test_a_large_request_is_not_read() -> None:
    assert refused(b" " * MAX_REQUEST_BYTES + REQUEST) is RequestFault.TOO_LARGE


@given(st.integers(0, len(DER) - 1), st.integers(1, 255))
def test_a_request_changed_on_the_way_is_refused(at: int, bits: int) -> None:
    changed = bytearray(DER)
    changed[at] ^= bits
    refused(in_pem(bytes(changed)))


@given(st.binary(max_size=400))
def test_bytes_that_are_no_request_are_refused(content: bytes) -> None:
    assert refused(content) is RequestFault.NOT_A_REQUEST


def test_a_key_with_a_passphrase_is_refused_with_a_reason() -> None:
    pem = KEY.private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")
    )
    with pytest.raises(KeyRefused, match="without a passphrase"):
        KeyPair.from_pem(pem)
