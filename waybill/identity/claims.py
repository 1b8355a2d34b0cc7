"""One-time tokens, which a device without a certificate shows once to be enrolled.

    token-Zm9v...                     the token's text, a secret of the device
    claim@token-0123456789abcdef      its user name on the enrolment broker; the password is the text
    $7$101$...                        its hash, which the registry has, in the format of Mosquitto's password files

The name is made from the hash, and the hash from the text: no other text can have a token's name.

A factory certificate is the other kind of claim. Its name is `claim@SERIAL`, and it has no hash.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
from collections.abc import Callable, Mapping
from datetime import timedelta
from hmac import compare_digest
from typing import NamedTuple

from pydantic import SecretStr

from waybill.identity.errors import NameRefused
from waybill.identity.names import PrincipalKind, principal

TOKEN_LIFETIME = timedelta(days=7)
"""The default validity of a token."""
_ITERATIONS = 101
"""As in mosquitto_passwd. A token has 256 random bits: more rounds would only slow down the broker."""
_SALT_BYTES, _HASH_BYTES = 12, 64
_TOKEN_ID = re.compile(r"token-[0-9a-f]{16}")
_TOKEN = re.compile(r"token-[A-Za-z0-9_-]{43}")
PASSWORD_HASH = re.compile(
    r"\$7\$([1-9][0-9]{0,3})\$((?:[A-Za-z0-9+/]{4}){0,15}(?:[A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=))"
    r"\$([A-Za-z0-9+/]{86}==)"
)
"""A hash in the format of Mosquitto 2, with at most 9,999 iterations: a forged one must not cost seconds to check."""


class EnrolmentToken(NamedTuple):
    """A new token. `text` goes to the device and is kept nowhere else; the registry gets the other two."""

    text: SecretStr
    id: str
    password_hash: str


def make_token(random_bytes: Callable[[int], bytes] = secrets.token_bytes) -> EnrolmentToken:
    """A new one-time token; `random_bytes` must be cryptographically secure."""
    return _token(f"token-{base64.urlsafe_b64encode(random_bytes(32)).rstrip(b'=').decode()}")


def read_token(text: str) -> EnrolmentToken:
    """Raises NameRefused for a text that is not a token."""
    token_user(text)
    return _token(text)


def _token(text: str) -> EnrolmentToken:
    password_hash = _hash_of(text)
    return EnrolmentToken(SecretStr(text), token_id(password_hash), password_hash)


def token_id(password_hash: str) -> str:
    return f"token-{hashlib.sha256(password_hash.encode()).hexdigest()[:16]}"


def is_token_id(claim_id: str) -> bool:
    return _TOKEN_ID.fullmatch(claim_id) is not None


def check_factory_serial(serial: str) -> None:
    """Raises NameRefused for an invalid name of a factory certificate, such as that of a token."""
    principal(PrincipalKind.CLAIM, serial)
    if is_token_id(serial):
        raise NameRefused(f"{serial!r} has the form of a token's name: a factory certificate cannot use it")


def token_user(text: str) -> str:
    """The MQTT user name of a token. Raises NameRefused for a text that is not a token."""
    if _TOKEN.fullmatch(text) is None:
        what = "one is a single line that begins with token-, as in the file that waybill device expect wrote"
        raise NameRefused(f"this is not an enrolment token: {what}")
    return principal(PrincipalKind.CLAIM, token_id(_hash_of(text)))


def broker_password(text: str, salt: bytes) -> str:
    """The hash of a password in Mosquitto's format `$7$`: PBKDF2 with SHA-512."""
    encoded = (base64.b64encode(part).decode() for part in (salt, _pbkdf2(text, salt, _ITERATIONS)))
    return f"$7${_ITERATIONS}${'$'.join(encoded)}"


def is_broker_password(text: str, password_hash: str) -> bool:
    matched = PASSWORD_HASH.fullmatch(password_hash)
    if matched is None:
        return False
    # Files may have hashes of another version, with another number of rounds.
    salt, wanted = base64.b64decode(matched[2]), base64.b64decode(matched[3])
    return compare_digest(_pbkdf2(text, salt, int(matched[1])), wanted)


def password_file(hashes: Mapping[str, str]) -> bytes:
    """A broker's password file of hashes by user name, in a fixed order."""
    return "".join(f"{user}:{hashes[user]}\n" for user in sorted(hashes)).encode()


def _hash_of(text: str) -> str:
    # The text is random, so its salt may be derived from it: the device can compute its own name.
    return broker_password(text, hashlib.sha256(text.encode()).digest()[:_SALT_BYTES])


def _pbkdf2(text: str, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac("sha512", text.encode(), salt, iterations, _HASH_BYTES)
