"""Keys from PEM: whatever OpenSSL says of bytes that are none is one error."""

from __future__ import annotations

from cryptography.exceptions import InternalError, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from settings import one_line

__all__ = ["private_key_of", "public_key_of"]

# A key of the wrong length for its kind is an internal error of the library.
_FAULTS = (ValueError, TypeError, UnsupportedAlgorithm, InternalError)


def private_key_of(pem: bytes) -> PrivateKeyTypes:
    """A private key without a passphrase. Raises ValueError."""
    try:
        return load_pem_private_key(pem, None)
    except _FAULTS as error:
        raise ValueError(f"no private key in PEM without a passphrase: {one_line(str(error))}") from error


def public_key_of(pem: bytes) -> PublicKeyTypes:
    """A public key. Raises ValueError."""
    try:
        return load_pem_public_key(pem)
    except _FAULTS as error:
        raise ValueError(f"no public key in PEM: {one_line(str(error))}") from error
