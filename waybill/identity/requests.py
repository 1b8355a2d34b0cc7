"""Private keys, and requests for a certificate: what somebody sends to an authority, and what it believes of it."""

from __future__ import annotations

import warnings
from typing import NamedTuple, Self

from cryptography import x509
from cryptography.exceptions import InternalError, InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from waybill.identity.errors import KeyRefused, RequestFault, RequestRefused
from waybill.identity.pem_keys import pem_fault, private_key_of

__all__ = ["MAX_REQUEST_BYTES", "CertificateRequest", "KeyPair", "PublicKey", "make_request", "read_request"]

MAX_REQUEST_BYTES = 8192
"""A request with an RSA key of 4096 bits has 1.7 kB."""
_RSA_BITS = range(2048, 4097)

PublicKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey


class KeyPair:
    """A private key that can be certified: P-256, P-384, or RSA of 2048 to 4096 bits (as many TPMs have).

    No Ed25519: TLS libraries and the profile by which chains are verified do not all take it.
    """

    def __init__(self, private: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> None:
        self._private = private

    @classmethod
    def generate(cls) -> Self:
        """A new key on P-256."""
        return cls(ec.generate_private_key(ec.SECP256R1()))

    @classmethod
    def from_pem(cls, pem: bytes) -> Self:
        """A key from PEM without a passphrase. Raises KeyRefused."""
        try:
            private = private_key_of(pem)
        except ValueError as error:
            raise KeyRefused(str(error)) from error
        if not (
            isinstance(private, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) and _is_taken(private.public_key())
        ):
            raise KeyRefused("the private key is neither P-256, P-384 nor RSA of 2048 to 4096 bits: make another")
        return cls(private)

    @property
    def private(self) -> ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey:
        """The key itself."""
        return self._private

    @property
    def public(self) -> PublicKey:
        """Its public half, which an authority certifies."""
        return self._private.public_key()

    def private_pem(self) -> bytes:
        """PKCS 8 in PEM, without a passphrase: for a file of mode 0600."""
        return self._private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )


class CertificateRequest(NamedTuple):
    """What a request asks for. The name is what the sender calls itself: an authority decides whether that is so."""

    common_name: str
    public_key: PublicKey


def make_request(key: KeyPair, cn: str) -> bytes:
    """A request in PEM for a certificate of this name, signed by its key."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, cn)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key.private, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM)


def read_request(pem: bytes) -> CertificateRequest:
    """The name and key of a request whose sender has that key. Raises RequestRefused for everything else."""
    # Before anything looks into it: the parser is not bounded.
    if len(pem) > MAX_REQUEST_BYTES:
        raise RequestRefused(RequestFault.TOO_LARGE, f"{len(pem)} bytes, and at most {MAX_REQUEST_BYTES} are read")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # of a country of ten letters, for one: that is no request either
            request = x509.load_pem_x509_csr(pem)
            names = request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
            key = request.public_key()
    except Exception as error:
        raise RequestRefused(RequestFault.NOT_A_REQUEST, pem_fault(error)) from error
    if not (isinstance(key, PublicKey) and _is_taken(key)):
        raise RequestRefused(RequestFault.KEY_NOT_TAKEN, "take a key on P-256 or P-384, or RSA of 2048 to 4096 bits")
    if not _is_signed(request):
        raise RequestRefused(RequestFault.BAD_SIGNATURE, "it is not signed by the key that it names")
    # With two, one tool would read the first and another the last.
    if len(names) != 1 or not isinstance(names[0].value, str):
        raise RequestRefused(RequestFault.WRONG_NAME, f"it has {len(names)} common names, and must have one")
    return CertificateRequest(names[0].value, key)


def _is_signed(request: x509.CertificateSigningRequest) -> bool:
    try:
        return request.is_signature_valid
    except (ValueError, TypeError, UnsupportedAlgorithm, InternalError, InvalidSignature):
        return False


def _is_taken(key: PublicKey) -> bool:
    if isinstance(key, rsa.RSAPublicKey):
        return key.key_size in _RSA_BITS
    return isinstance(key.curve, ec.SECP256R1 | ec.SECP384R1)
