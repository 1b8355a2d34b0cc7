"""Private and public keys from PEM, with one error for all that OpenSSL may report."""

from __future__ import annotations

import re

from cryptography.exceptions import InternalError, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from waybill.settings import one_line

_PAGE = re.compile(r" ?See https?://\S+ for more details\.")
# A key of the wrong length for its kind is an internal error of the library.
_FAULTS = (ValueError, TypeError, UnsupportedAlgorithm, InternalError)


def private_key_of(pem: bytes) -> PrivateKeyTypes:
    """A private key without a passphrase. Raises ValueError."""
    try:
        return load_pem_private_key(pem, None)
    except _FAULTS as error:
        raise ValueError(f"no private key in PEM without a passphrase: {pem_fault(error)}") from error


def public_key_of(pem: bytes) -> PublicKeyTypes:
    """Raises ValueError."""
    try:
        return load_pem_public_key(pem)
    except _FAULTS as error:
        raise ValueError(f"no public key in PEM: {pem_fault(error)}") from error


def pem_fault(error: Exception) -> str:
    """The library's message in one line, without the link to its documentation."""
    return one_line(_PAGE.sub("", str(error)))
