"""What passes the front door."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.inflight import BatchRules, Refusal, Sender, validate_batch
from tests.gateway.strategies import batch
from tests.strategies import batches
from waybill.record import encode

RULES = BatchRules(max_batch_bytes=1 << 20)
D1 = Sender("fleet", "d1")


def reason(rules: BatchRules, sender: Sender, payload: bytes) -> str:
    verdict = validate_batch(rules, sender, payload)
    assert isinstance(verdict, Refusal)
    assert verdict.detail
    return verdict.reason


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"", "not-a-batch"),
        (b"hello", "not-a-batch"),
        (batch("d1", 1, 3)[:-1], "truncated"),
        (batch("d1", 1, 3) + b"x", "malformed"),
        (b"WB\x09" + batch("d1", 1, 3)[3:], "unknown-version"),
        (batch("d1", 1, 3)[:-1] + b"\xff", "checksum"),
        (batch("d2", 1, 3), "wrong-device"),
    ],
)
def test_a_batch_that_is_not_what_it_says_is_refused_with_a_word(payload: bytes, why: str) -> None:
    assert reason(RULES, D1, payload) == why


def test_a_tenant_that_is_not_served_is_refused() -> None:
    rules = BatchRules(max_batch_bytes=1 << 20, tenants={"fleet"})
    assert reason(rules, Sender("other", "d1"), batch("d1", 1, 3)) == "unknown-tenant"


def test_a_batch_that_is_too_large_is_refused_with_its_seqs_for_its_own_device() -> None:
    rules = BatchRules(max_batch_bytes=10)
    assert reason(rules, D1, batch("d1", 1, 3)) == "too-large"
    verdicts = [validate_batch(rules, D1, payload) for payload in (batch("d1", 1, 3), batch("d2", 1, 3), b"x" * 20)]
    headers = [verdict.header for verdict in verdicts if isinstance(verdict, Refusal)]
    assert [header and header.seqs.ranges for header in headers] == [((1, 3),), None, None]


@given(batches().map(encode), st.data())
def test_a_batch_with_one_changed_byte_never_passes(payload: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(payload) - 1))
    changed = bytearray(payload)
    changed[at] ^= data.draw(st.integers(1, 255))
    assert isinstance(validate_batch(RULES, Sender("fleet", "eu-0001"), bytes(changed)), Refusal)


@given(st.binary(max_size=200))
def test_no_bytes_whatever_break_the_door(payload: bytes) -> None:
    assert isinstance(validate_batch(RULES, D1, payload), Refusal)


def unreadable(payload: bytes) -> bytes:
    """The batch with a content that has the right checksum and says nothing."""
    version, header_length = payload[2], int.from_bytes(payload[8:12], "big")
    header, content = payload[16 : 16 + header_length], b"\xc0"
    lengths = header_length.to_bytes(4, "big") + len(content).to_bytes(4, "big")
    checksum = zlib.crc32(header + content, zlib.crc32(bytes([version, 0]) + lengths))
    return payload[:3] + b"\0" + checksum.to_bytes(4, "big") + lengths + header + content


def test_a_batch_that_the_centre_could_not_read_is_refused_with_its_seqs() -> None:
    verdict = validate_batch(RULES, D1, unreadable(batch("d1", 1, 3)))
    assert isinstance(verdict, Refusal)
    assert verdict.reason == "malformed"
    assert verdict.header is not None
    assert verdict.header.seqs.ranges == ((1, 3),)
