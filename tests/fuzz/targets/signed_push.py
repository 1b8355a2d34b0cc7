"""The envelope of pushed settings: its first line, and whose signature it has."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from tests.fuzz.bounds import check_refusal
from tests.identity.operators import operator, trusting
from waybill.identity.errors import SignatureRefused
from waybill.identity.signatures import MAX_VERSION, read_signed_push, sign_push, verify_push

ANNA = operator(tenants=("acme",), kinds=("settings",))
KEYS = trusting(ANNA)
BUS, NOW = "acme/bus-17", datetime(2026, 11, 23, tzinfo=UTC)
SETTINGS = b"[drain]\nwindow = 7\n"
SIGNED = sign_push(ANNA.key, BUS, 5, SETTINGS)


def seeds() -> Iterable[bytes]:
    """A good one, and such as are for another device, of another version, cut, or without an end of the line."""
    yield SIGNED
    yield sign_push(ANNA.key, "zeta/bus-1", MAX_VERSION, b"")
    yield SIGNED.replace(b"version=5", b"version=000000000000006")
    yield SIGNED.replace(b"device=acme", b"device=../../acme")
    yield SIGNED.replace(b"signature=", b"signature=====")
    yield SIGNED[:100]
    yield b"#waybill-push 1 device=" + b"a/" * 20_000
    yield SETTINGS


def judge(data: bytes) -> None:
    """Nothing but what anna signed is taken, whatever is made of it; the rest is SignatureRefused in bounded words."""
    try:
        push = read_signed_push(data)
        verify_push(KEYS, push, BUS, NOW)
    except SignatureRefused as error:
        check_refusal(error)
        return
    assert (push.version, push.settings) == (5, SETTINGS)
