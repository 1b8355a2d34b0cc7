"""How a message shows that it is ours: HMAC-SHA256 over key, time and body, as Standard Webhooks has it. Pure.

The secret is `whsec_` and 24 to 64 bytes in base64. While it is changed a file holds two, and each signs: whoever
checks takes a message if one of the signatures is right.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence
from typing import Final

__all__ = ["PREFIX", "secrets_of", "signature_header"]

PREFIX: Final = "whsec_"
# a change of secrets needs two
MAX_SECRETS: Final = 4
_BYTES: Final = range(24, 65)


def secrets_of(text: str) -> tuple[bytes, ...]:
    """The secrets of a file's text, one a line. Raises ValueError, which never shows them."""
    found = [line.strip() for line in text.splitlines() if line.strip()]
    if not found or len(found) > MAX_SECRETS:
        raise ValueError(f"it has {len(found)} lines, and one secret a line is needed, at most {MAX_SECRETS}")
    return tuple(_secret(line) for line in found)


def _secret(line: str) -> bytes:
    try:
        # strictly: what is passed over silently makes another secret than the receiver's
        raw = base64.b64decode(line.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if not line.startswith(PREFIX) or len(raw) not in _BYTES:
        raise ValueError(f"a secret is {PREFIX} and {_BYTES[0]} to {_BYTES[-1]} bytes in base64")
    return raw


def signature_header(secrets: Sequence[bytes], key: str, timestamp_s: int, body: bytes) -> str:
    """The value of `webhook-signature`: one signature for each secret."""
    # the key and the time too, so that neither can be put on another message
    signed = f"{key}.{timestamp_s}.".encode() + body
    made = (base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode() for secret in secrets)
    return " ".join(f"v1,{one}" for one in made)
