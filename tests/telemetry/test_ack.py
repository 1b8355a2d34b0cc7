"""What a gateway says to a device is understood, also by an older one."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry import Ack, IntervalSet, Malformed, decode_ack, encode_ack
from tests.strategies import interval_sets


@given(st.integers(0, 1 << 62), interval_sets, st.sampled_from([0.0, 2.5]), st.sampled_from(["", "checksum"]))
def test_an_acknowledgement_comes_back_as_it_was(epoch: int, ranges: IntervalSet, pause: float, refused: str) -> None:
    ack = Ack(epoch, ranges, pause, refused)
    assert decode_ack(encode_ack(ack)) == ack


def test_keys_of_a_newer_gateway_are_passed_over() -> None:
    assert decode_ack(msgpack.packb({"epoch": 3, "ranges": [[1, 2]], "new": {"x": 1}})) == Ack(3, IntervalSet([(1, 2)]))


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x01", msgpack.packb({"ranges": [[2, 1]]}), b"not msgpack"])
def test_an_acknowledgement_that_cannot_be_read_is_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        decode_ack(data)


def test_ranges_that_are_not_taken_are_never_told_as_taken() -> None:
    told = msgpack.unpackb(encode_ack(Ack(3, IntervalSet([(1, 2)]), refused="too-large")))
    assert "ranges" not in told
