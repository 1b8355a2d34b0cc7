"""Errors of identities: names, keys, requests and authorities."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

MAX_ERROR_CHARACTERS = 1000


class IdentityError(Exception):
    """Base of all errors of this package. Its text is bounded, because it may quote foreign input."""

    def __init__(self, text: str) -> None:
        super().__init__(text if len(text) <= MAX_ERROR_CHARACTERS else f"{text[:MAX_ERROR_CHARACTERS]}...")


class NameRefused(IdentityError, ValueError):
    """An invalid name."""


class KeyRefused(IdentityError):
    """A private key that cannot be used here."""


class SealingKeyError(IdentityError):
    """A key file for sealed batches cannot be used; the message names it."""


class Unsealable(IdentityError):
    """A sealed batch does not open."""


class RequestFault(StrEnum):
    """Why a certificate request is refused: the word in answers and metrics."""

    TOO_LARGE = "too-large"
    """It is larger than a request may be."""
    NOT_A_REQUEST = "not-a-request"
    """It is not a certificate request in PEM."""
    BAD_SIGNATURE = "bad-signature"
    """It is not signed by its own key."""
    KEY_NOT_TAKEN = "key-not-taken"
    """Its key is neither of the curves P-256 and P-384, nor an RSA key of 2048 to 4096 bits."""
    WRONG_NAME = "wrong-name"
    """It has no name, or another name than expected."""


class RequestRefused(IdentityError):
    def __init__(self, reason: RequestFault, detail: str) -> None:
        super().__init__(f"certificate request refused ({reason}): {detail}")
        self.reason = reason


class EnrolmentUnreadable(IdentityError):
    """`nonce`: that of the message if it can be read, else ""."""

    def __init__(self, why: str, nonce: str = "") -> None:
        super().__init__(f"this is not an enrolment message: {why}")
        self.nonce = nonce


class AuthorityError(IdentityError):
    """An authority cannot do what it is asked."""


class NotAnAuthority(AuthorityError):
    """A certificate may not sign others, or belongs to another key."""


class AuthorityFolderError(IdentityError):
    """The files of a folder cannot be used: they are damaged, or the key and the certificate are no pair."""

    def __init__(self, folder: Path, what: str) -> None:
        super().__init__(f"{folder}: {what}")


class AuthorityExists(AuthorityFolderError):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "holds an authority, which is never replaced: use another folder")


class AuthorityMissing(AuthorityFolderError):
    """There is no authority, or its key is kept elsewhere."""


class SignatureFault(StrEnum):
    """Why a signature is refused: the word in quarantines, answers and metrics."""

    UNSIGNED = "unsigned"
    """The signature is missing or malformed."""
    UNKNOWN_KEY = "unknown-key"
    """The key is not trusted here."""
    ALTERED = "altered"
    """The key did not sign this content."""
    NOT_VALID_THEN = "not-valid-then"
    """The key was not valid yet, or had expired."""
    FOR_ANOTHER = "for-another"
    """It is for another device."""
    NO_RIGHT = "no-right"
    """The key has no right to this tenant, account or kind."""


class SignatureRefused(IdentityError):
    def __init__(self, fault: SignatureFault, detail: str) -> None:
        super().__init__(f"{fault.value}: {detail}")
        self.fault = fault


class OperatorKeyRefused(IdentityError):
    """A file is not an operator's private key."""
