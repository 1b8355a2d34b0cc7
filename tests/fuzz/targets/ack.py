"""Acknowledgements: refused, or one that can be written and read again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from waybill.record import Ack, IntervalSet, Malformed, decode_ack, encode_ack


def seeds() -> Iterable[bytes]:
    """Acknowledgements of each kind."""
    yield encode_ack(Ack(1 << 60, IntervalSet([(1, 2), (5, 1 << 40)]), 2.5))
    yield encode_ack(Ack(7, IntervalSet([(1, 9)]), refusal="too-large"))
    yield encode_ack(Ack())


def judge(data: bytes) -> None:
    """See `tests.fuzz`."""
    with contextlib.suppress(Malformed):
        ack = decode_ack(data)
        assert decode_ack(encode_ack(ack)) == ack
