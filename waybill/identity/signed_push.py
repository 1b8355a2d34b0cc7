"""Settings for one device, signed: a first line that TOML reads as a comment, and the settings behind it. Pure.

#waybill-push 1 device=acme/bus-17 version=1764000000000 signer=4be1c87c8f0ee1a2 signature=...
[drain]
window = 7

The signature is over device, version and settings. The version only grows: a device takes no older one.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import NamedTuple

from waybill.identity.errors import SignatureFault, SignatureRefused
from waybill.identity.names import parse_name
from waybill.identity.operator_keys import OperatorKeys, Scope, TrustedKey
from waybill.identity.signatures import OperatorKey, encoded_signature, signature_of

__all__ = ["MAX_VERSION", "SETTINGS_KIND", "SignedPush", "read_signed_push", "sign_push", "verify_push"]

MAX_VERSION = 10**15 - 1
"""Milliseconds since 1970 until the year 33658: a version has 15 digits."""
SETTINGS_KIND = "settings"
"""What a key must be allowed to sign."""
_WHAT = "waybill push 1"
_HEADER = re.compile(
    r"#waybill-push 1 device=([A-Za-z0-9._/-]{3,64}) version=([0-9]{1,15}) signer=([0-9a-f]{16})"
    r" signature=([A-Za-z0-9+/=]{88})"
)
_MAX_HEADER = 300


class SignedPush(NamedTuple):
    """What a signed push says; nothing of it is checked yet."""

    device: str
    version: int
    signer: str
    signature: bytes
    settings: bytes


def sign_push(key: OperatorKey, device: str, version: int, settings: bytes) -> bytes:
    """Settings for a device, signed. Raises ValueError for a version that none can be."""
    if not 0 < version <= MAX_VERSION:
        raise ValueError(f"the version {version} is not between 1 and {MAX_VERSION}")
    signature = encoded_signature(key.sign(_WHAT, _parts(device, version, settings)))
    header = f"#waybill-push 1 device={device} version={version} signer={key.key_id} signature={signature}\n"
    return header.encode() + settings


def read_signed_push(text: bytes) -> SignedPush:
    """The parts of a signed push. Raises SignatureRefused for what has no such first line."""
    # looked for within the header's length: what is hostile may be one line of megabytes
    header, _, _ = text[:_MAX_HEADER].partition(b"\n")
    matched = _HEADER.fullmatch(header.decode("ascii", "replace"))
    if matched is None:
        raise SignatureRefused(SignatureFault.UNSIGNED, "its first line is not that of a signed push")
    device, version, signer, signature = matched.groups()
    return SignedPush(device, int(version), signer, signature_of(signature), text[len(header) + 1 :])


def verify_push(keys: OperatorKeys, push: SignedPush, device: str, moment: datetime) -> TrustedKey:
    """The key that signed settings for this device, if it may and is valid now. Raises SignatureRefused."""
    if push.device != device:
        raise SignatureRefused(SignatureFault.FOR_ANOTHER, f"it is for {push.device}, and this is {device}")
    name = parse_name(device)
    tenants = frozenset({device.partition("/")[0]} if name is not None else set[str]())
    scope = Scope(SETTINGS_KIND, tenants, is_shared=not tenants)
    # the version is signed, too: nobody makes an old push a new one
    parts = _parts(push.device, push.version, push.settings)
    return keys.verify(push.signer, push.signature, _WHAT, parts, scope=scope, moment=moment)


def _parts(device: str, version: int, settings: bytes) -> list[bytes]:
    return [device.encode(), str(version).encode(), settings]
