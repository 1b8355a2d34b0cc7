"""A signed push is settings with a first line that TOML reads as a comment; nothing in it can be altered."""

from __future__ import annotations

import tomllib
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.identity.operators import operator, trusting
from waybill.identity.errors import SignatureRefused
from waybill.identity.signatures import NewOperator, read_signed_push, sign_push, verify_push

NOW = datetime(2026, 11, 23, tzinfo=UTC)
ANNA = operator("anna", tenants=("acme",), kinds=("settings",), valid_until=NOW + timedelta(days=1))
KEYS = trusting(ANNA, operator("paul"))
BUS, TEXT = "acme/bus-17", b"[drain]\nwindow = 7\n"


def judged(text: bytes, device: str = BUS, now: datetime = NOW) -> str:
    try:
        return verify_push(KEYS, read_signed_push(text), device, now).name
    except SignatureRefused as refused:
        return refused.fault


def test_what_is_signed_stays_toml_and_comes_out_as_it_went_in() -> None:
    signed = sign_push(ANNA.key, BUS, 5, TEXT)
    assert tomllib.loads(signed.decode()) == {"drain": {"window": 7}}
    push = read_signed_push(signed)
    assert (push.device, push.version, push.settings) == (BUS, 5, TEXT)
    assert judged(signed) == "anna"


@pytest.mark.parametrize(
    ("altered", "fault"),
    [
        ((b"window = 7", b"window = 8"), "altered"),
        ((b"version=5", b"version=6"), "altered"),
        ((b"acme/bus-17", b"acme/bus-18"), "for-another"),
        ((b"waybill-push 1", b"waybill-push 2"), "unsigned"),
        ((ANNA.key.key_id.encode(), b"0" * 16), "unknown-key"),
    ],
)
def test_whatever_is_altered_is_refused(altered: tuple[bytes, bytes], fault: str) -> None:
    assert judged(sign_push(ANNA.key, BUS, 5, TEXT).replace(*altered)) == fault


@pytest.mark.parametrize(
    ("who", "device", "now", "fault"),
    [
        (ANNA, "beta/bus-1", NOW, "no-right"),
        (ANNA, BUS, NOW + timedelta(days=2), "not-valid-then"),
        (operator("nobody"), BUS, NOW, "unknown-key"),
    ],
)
def test_who_may_not_is_refused(who: NewOperator, device: str, now: datetime, fault: str) -> None:
    assert judged(sign_push(who.key, device, 5, TEXT), device, now) == fault


@given(st.binary(max_size=400))
def test_no_other_bytes_are_a_signed_push(text: bytes) -> None:
    assert judged(text) == "unsigned"


def test_one_line_of_megabytes_is_refused_without_being_read() -> None:
    assert judged(b"#waybill-push 1 device=" + b"a" * (8 << 20)) == "unsigned"


@pytest.mark.parametrize("version", [0, -1, 10**15])
def test_a_version_that_no_device_would_read_is_not_signed(version: int) -> None:
    with pytest.raises(ValueError, match="version"):
        sign_push(ANNA.key, BUS, version, TEXT)
