"""What a gateway says to a device is understood, also by an older one, and can never harm it."""

import math

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import interval_sets
from waybill.record import Ack, IntervalSet, Malformed, decode_ack, encode_ack, split_ack
from waybill.record.ack import MAX_ACK_BYTES, MAX_ACK_RANGES, MAX_PAUSE_S


@given(st.integers(0, 1 << 62), interval_sets, st.sampled_from([0.0, 2.5]), st.sampled_from(["", "checksum"]))
def test_an_acknowledgement_comes_back_as_it_was(epoch: int, ranges: IntervalSet, pause: float, refusal: str) -> None:
    ack = Ack(epoch, ranges, pause, refusal)
    assert decode_ack(encode_ack(ack)) == ack


def test_keys_of_a_newer_gateway_are_passed_over() -> None:
    newer = msgpack.packb({"epoch": 3, "ranges": [[1, 2]], "new": {"x": [1, {"y": [[]]}]}})
    assert decode_ack(newer) == Ack(3, IntervalSet([(1, 2)]))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x01",
        b"not msgpack",
        msgpack.packb({"epoch": 1}) + b"\x00",
        msgpack.packb({"ranges": [[2, 1]]}),
        msgpack.packb({"ranges": [[0, 1]]}),
        msgpack.packb({"ranges": [[-5, 1]]}),
        msgpack.packb({"ranges": [[1, (1 << 64) - 1]]}),
        msgpack.packb({"ranges": [[1, 1 << 63]]}),
        msgpack.packb({"ranges": [[1.0, 2]]}),
        msgpack.packb({"ranges": [[True, 2]]}),
        msgpack.packb({"ranges": [[1, 2, 3]]}),
        msgpack.packb({"ranges": {"1": 2}}),
        msgpack.packb({"ranges": "12"}),
        msgpack.packb({"ranges": [[number, number] for number in range(1, 3 * MAX_ACK_RANGES, 2)]}),
        msgpack.packb({"epoch": math.inf}),
        msgpack.packb({"epoch": -1}),
        msgpack.packb({"epoch": 1 << 63}),
        msgpack.packb({"epoch": "1"}),
        msgpack.packb({"pause_s": math.inf}),
        msgpack.packb({"pause_s": math.nan}),
        msgpack.packb({"pause_s": -1}),
        msgpack.packb({"pause_s": MAX_PAUSE_S + 1}),
        msgpack.packb({"pause_s": "1"}),
        msgpack.packb({"refused": "x" * 257}),
        msgpack.packb({"refused": ["x"]}),
        b"\x81\xa7refused\xa2\xff\xff",
        b"\x81\xa1x" + b"\x91" * 5000 + b"\x01",
        b"\xdf\xff\xff\xff\xff",
        bytes(MAX_ACK_BYTES + 1),
    ],
)
def test_an_acknowledgement_that_a_device_cannot_keep_is_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        decode_ack(data)


@pytest.mark.parametrize("refusal", ["", "too-large"])
def test_an_acknowledgement_of_many_ranges_travels_as_several(refusal: str) -> None:
    ranges = IntervalSet((number, number) for number in range(1, 5 * MAX_ACK_RANGES, 2))
    parts = [decode_ack(encode_ack(part)) for part in split_ack(Ack(7, ranges, 2.5, refusal))]
    assert len(parts) == 3
    assert IntervalSet(bounds for part in parts for bounds in part.seqs.ranges) == ranges
    assert [part.pause_s for part in parts] == [2.5, 0, 0]
    assert {(part.epoch, part.refusal) for part in parts} == {(7, refusal)}
    assert list(split_ack(Ack(7))) == [Ack(7)]
