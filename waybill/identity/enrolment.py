"""The messages of enrolment and renewal: a request for a certificate, and its answer.

    {"version": 1, "nonce": "...", "request": "-----BEGIN CERTIFICATE REQUEST-----..."}
    {"version": 1, "nonce": "...", "chain": "-----BEGIN CERTIFICATE-----..."}
    {"version": 1, "nonce": "...", "refusal": "claim-used", "detail": "..."}

Bounded JSON, read strictly. The broker knows the sender by password or certificate. The answer returns the request's
random nonce, so that an answer to an earlier request is not accepted.
"""

from __future__ import annotations

import json
import re
from enum import StrEnum
from typing import Any, NamedTuple

from waybill.identity.errors import EnrolmentUnreadable
from waybill.record import InvalidJson, parse_json

MAX_ENROLMENT_BYTES = 15 << 10
"""With its topic a message fits into the 16 kB packet of an enrolment broker."""
MAX_DETAIL_CHARACTERS = 300
VERSION = 1
_NONCE = re.compile(r"[0-9a-f]{32}")
_MAX_VALUES = 16


class RefusedBecause(StrEnum):
    """Why no certificate is issued: the word in answers, metrics and logs."""

    UNREADABLE = "unreadable"
    """Not a valid message, or of another version."""
    BAD_REQUEST = "bad-request"
    """The certificate request is malformed, not signed by its own key, or its key is too weak."""
    OTHER_NAME = "other-name"
    """The certificate request names another device than the one that asks, or that the claim is for."""
    UNKNOWN_CLAIM = "unknown-claim"
    """No device is expected with this token or factory certificate."""
    CLAIM_EXPIRED = "claim-expired"
    """The claim was not used in time."""
    CLAIM_USED = "claim-used"
    """A device was already enrolled with it, with another key or too long ago to be a repetition."""
    NOT_ACTIVE = "not-active"
    """The device is unknown, suspended or revoked."""
    OTHER_REGION = "other-region"
    """Another region enrols and renews this device."""
    OLD_KEY = "old-key"
    """The device had an earlier certificate for this key: an old request was sent again."""
    TOO_MANY = "too-many"
    """The device has as many valid certificates as a device may have."""
    UNAVAILABLE = "unavailable"
    """The region's authority cannot sign now; ask again later."""
    TOO_OFTEN = "too-often"
    """Too many requests came, from this sender or from all; ask again later."""

    @property
    def takes_another_key(self) -> bool:
        """Whether only a request with another key can succeed."""
        return self in {RefusedBecause.BAD_REQUEST, RefusedBecause.OLD_KEY}


class EnrolmentRequest(NamedTuple):
    """A certificate request (PEM), and the nonce for its answer."""

    nonce: str
    csr: bytes


class EnrolmentGranted(NamedTuple):
    """The certificate, and the authorities between it and the root (PEM)."""

    nonce: str
    chain_pem: bytes


class EnrolmentRefused(NamedTuple):
    """`nonce` is "" if the request's could not be read."""

    nonce: str
    reason: RefusedBecause
    detail: str


EnrolmentAnswer = EnrolmentGranted | EnrolmentRefused


def encode_enrolment_request(request: EnrolmentRequest) -> bytes:
    return _encode({"version": VERSION, "nonce": request.nonce, "request": request.csr.decode("ascii")})


def decode_enrolment_request(data: bytes) -> EnrolmentRequest:
    """Raises EnrolmentUnreadable."""
    members = _decode(data)
    if members.keys() != {"version", "nonce", "request"}:
        raise EnrolmentUnreadable("its members are not exactly version, nonce and request", members["nonce"])
    return EnrolmentRequest(members["nonce"], _ascii(members, "request"))


def encode_enrolment_answer(answer: EnrolmentAnswer) -> bytes:
    if isinstance(answer, EnrolmentGranted):
        return _encode({"version": VERSION, "nonce": answer.nonce, "chain": answer.chain_pem.decode("ascii")})
    # Cut, because a message above the bound would be refused.
    detail = answer.detail[:MAX_DETAIL_CHARACTERS]
    return _encode({"version": VERSION, "nonce": answer.nonce, "refusal": answer.reason, "detail": detail})


def decode_enrolment_answer(data: bytes) -> EnrolmentAnswer:
    """Raises EnrolmentUnreadable."""
    # An unreadable request is answered too: a device without an answer would ask again and again.
    members = _decode(data, may_lack_nonce=True)
    nonce = members["nonce"]
    if members.keys() == {"version", "nonce", "chain"} and nonce:
        return EnrolmentGranted(nonce, _ascii(members, "chain"))
    if members.keys() != {"version", "nonce", "refusal", "detail"}:
        raise EnrolmentUnreadable("it is neither a certificate nor a refusal", nonce)
    detail = members["detail"]
    if not isinstance(detail, str) or len(detail) > MAX_DETAIL_CHARACTERS:
        raise EnrolmentUnreadable("its detail is not a short text", nonce)
    try:
        return EnrolmentRefused(nonce, RefusedBecause(members["refusal"]), detail)
    except ValueError as error:
        raise EnrolmentUnreadable(f"its refusal is unknown: {members['refusal']!r:.80}", nonce) from error


def _encode(members: dict[str, Any]) -> bytes:
    data = json.dumps(members, ensure_ascii=False, separators=(",", ":")).encode()
    assert len(data) <= MAX_ENROLMENT_BYTES, "what is sent is what the other side reads"
    return data


def _decode(data: bytes, *, may_lack_nonce: bool = False) -> dict[str, Any]:
    try:
        members = parse_json(data, max_bytes=MAX_ENROLMENT_BYTES, max_depth=1, max_values=_MAX_VALUES)
    except InvalidJson as error:
        raise EnrolmentUnreadable(str(error)) from error
    if not isinstance(members, dict):
        raise EnrolmentUnreadable("it is not an object")
    nonce = members.get("nonce")
    if not isinstance(nonce, str) or not (_NONCE.fullmatch(nonce) or (may_lack_nonce and not nonce)):
        raise EnrolmentUnreadable("its nonce is not 32 hexadecimal digits")
    version = members.get("version")
    # Not by `isinstance`: `true` would be version 1.
    if type(version) is not int or version != VERSION:
        raise EnrolmentUnreadable(f"its version is {version!r:.40}, but this program reads {VERSION}", nonce)
    return members


def _ascii(members: dict[str, Any], name: str) -> bytes:
    text = members[name]
    if not isinstance(text, str) or not text.isascii():
        raise EnrolmentUnreadable(f"its {name} is no PEM", members["nonce"])
    return text.encode("ascii")
