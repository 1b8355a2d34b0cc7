"""Messages of enrolment and renewal, tokens and their hashes: the first byte chooses."""

from __future__ import annotations

from collections.abc import Iterable

from tests.fuzz.bounds import check_refusal
from waybill.identity.claims import is_broker_password, make_token, token_user
from waybill.identity.enrolment import (
    EnrolmentGranted,
    EnrolmentRefused,
    EnrolmentRequest,
    RefusedBecause,
    decode_enrolment_answer,
    decode_enrolment_request,
    encode_enrolment_answer,
    encode_enrolment_request,
)
from waybill.identity.errors import EnrolmentUnreadable, NameRefused

NONCE = "0123456789abcdef" * 2
TOKEN = make_token(bytes)
_REQUEST, _ANSWER, _TOKEN, _HASH = range(4)
_KINDS = 4


def seeds() -> Iterable[bytes]:
    """One of each, and such as are of other types, versions or lengths."""
    yield bytes([_REQUEST]) + encode_enrolment_request(EnrolmentRequest(NONCE, b"-----BEGIN"))
    yield bytes([_ANSWER]) + encode_enrolment_answer(EnrolmentGranted(NONCE, b"-----BEGIN"))
    yield bytes([_ANSWER]) + encode_enrolment_answer(EnrolmentRefused("", RefusedBecause.CLAIM_USED, "why"))
    yield bytes([_REQUEST]) + b'{"version": true, "nonce": [], "request": {}}'
    yield bytes([_ANSWER]) + b'{"version": 1, "nonce": "' + NONCE.encode() + b'", "refusal": [], "detail": 5}'
    yield bytes([_REQUEST]) + b'{"version": 1, "nonce": "' + NONCE.encode() + b'", "request": "\xc3\xa4"}'
    yield bytes([_TOKEN]) + TOKEN.text.get_secret_value().encode()
    yield bytes([_HASH]) + TOKEN.password_hash.encode()
    yield bytes([_HASH]) + b"$7$9999999$====$" + b"A" * 86 + b"=="
    yield bytes([_HASH]) + b"$7$0$AAAA$" + b"A" * 86 + b"=="


def judge(data: bytes) -> None:
    """Read and written again as it was, or refused; no hash takes long to compare."""
    kind, rest = data[:1], data[1:]
    if not kind:
        return
    try:
        if kind[0] % _KINDS == _REQUEST:
            request = decode_enrolment_request(rest)
            assert decode_enrolment_request(encode_enrolment_request(request)) == request
        elif kind[0] % _KINDS == _ANSWER:
            answer = decode_enrolment_answer(rest)
            assert decode_enrolment_answer(encode_enrolment_answer(answer)) == answer
        elif kind[0] % _KINDS == _TOKEN:
            assert token_user(rest.decode("utf-8", "replace")).startswith("claim@")
        else:
            is_broker_password("another text", rest.decode("utf-8", "replace"))
    except (EnrolmentUnreadable, NameRefused) as error:
        check_refusal(error)
