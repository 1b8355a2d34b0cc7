"""Acknowledgements of a gateway: the persisted seqs, a pause, or a refusal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import msgpack

from waybill.record.errors import Malformed
from waybill.record.intervals import IntervalSet

MAX_ACK_BYTES = 256 << 10
MAX_ACK_RANGES = 8_192
"""The most ranges of one acknowledgement; `split_ack` makes several of more."""
MAX_PAUSE_S = 86_400.0
MAX_REFUSAL_CHARACTERS = 256
MAX_NUMBER = (1 << 63) - 1

_TAKEN = "ranges"
_NOT_TAKEN = "refused_ranges"
_MAX_MEMBERS = 32


@dataclass(frozen=True, slots=True)
class Ack:
    """`seqs` of `epoch` are persisted and may be deleted; with a `refusal` they are the ones that were not accepted.

    `refusal`: a RefusalReason, or a word of a newer gateway. `pause_s`: send only urgent records for this time, 0 to
    MAX_PAUSE_S. `epoch`: 0 to 2**63-1. Numbers in `seqs`: 1 to 2**63-1.
    """

    epoch: int = 0
    seqs: IntervalSet = field(default_factory=IntervalSet)
    pause_s: float = 0.0
    refusal: str = ""


def split_ack(ack: Ack) -> Iterator[Ack]:
    """The same in acknowledgements of at most MAX_ACK_RANGES; the first one has the pause."""
    ranges = ack.seqs.ranges
    yield replace(ack, seqs=IntervalSet(ranges[:MAX_ACK_RANGES]))
    for start in range(MAX_ACK_RANGES, len(ranges), MAX_ACK_RANGES):
        yield replace(ack, seqs=IntervalSet(ranges[start : start + MAX_ACK_RANGES]), pause_s=0.0)


def encode_ack(ack: Ack) -> bytes:
    """A msgpack map without empty members. Raises Malformed.

    Refused ranges have a key of their own: a device that does not know it must not delete them.
    """
    _check(ack)
    ranges = _NOT_TAKEN if ack.refusal else _TAKEN
    message: dict[str, Any] = {"epoch": ack.epoch, ranges: ack.seqs.ranges}  # msgpack takes tuples for arrays
    if ack.pause_s:
        message["pause_s"] = ack.pause_s
    if ack.refusal:
        message["refused"] = ack.refusal
    packed: bytes = msgpack.packb(message)
    return packed


def decode_ack(data: bytes) -> Ack:
    """Unknown keys are ignored, for gateways newer than the device. Raises Malformed."""
    if len(data) > MAX_ACK_BYTES:
        raise Malformed(f"an acknowledgement of {len(data)} bytes, {MAX_ACK_BYTES} are allowed")
    try:
        ack = _read(data)
    except (TypeError, ValueError, msgpack.UnpackException) as error:
        raise Malformed(f"an acknowledgement that cannot be read: {error}") from error
    _check(ack)
    return ack


def _read(data: bytes) -> Ack:
    """Reads piece by piece: the bound of each array is checked before it is built."""
    # 0: the unpacker makes no array and no map by itself, only what is opened below, where its bound is known.
    unpacker = msgpack.Unpacker(max_buffer_size=MAX_ACK_BYTES, raw=False, max_array_len=0, max_map_len=0)
    unpacker.feed(data)
    members = unpacker.read_map_header()
    if members > _MAX_MEMBERS:
        raise Malformed(f"an acknowledgement of {members} members, {_MAX_MEMBERS} are allowed")
    known: dict[str, Any] = {}
    for _ in range(members):
        key = unpacker.unpack()
        if key in (_TAKEN, _NOT_TAKEN):
            known[key] = _read_ranges(unpacker)
        elif key in ("epoch", "pause_s", "refused"):
            known[key] = unpacker.unpack()
        else:
            unpacker.skip()
    if unpacker.tell() != len(data):
        raise Malformed(f"{len(data) - unpacker.tell()} bytes follow the acknowledgement")
    refusal = known.get("refused", "")
    bounds = known.get(_NOT_TAKEN if refusal else _TAKEN, [])
    return Ack(known.get("epoch", 0), IntervalSet(bounds), known.get("pause_s", 0.0), refusal)


def _read_ranges(unpacker: msgpack.Unpacker) -> list[tuple[int, int]]:
    count = unpacker.read_array_header()
    if count > MAX_ACK_RANGES:
        raise Malformed(f"an acknowledgement of {count} ranges, {MAX_ACK_RANGES} are allowed")
    bounds: list[tuple[int, int]] = []
    for _ in range(count):
        if unpacker.read_array_header() != 2:
            raise Malformed("a range of an acknowledgement is not a valid [first, last]")
        first, last = unpacker.unpack(), unpacker.unpack()
        # Not isinstance: True is an int to Python.
        if type(first) is not int or type(last) is not int:
            raise Malformed(f"a range of an acknowledgement is {first!r} to {last!r}"[:200])
        bounds.append((first, last))
    return bounds


def _check(ack: Ack) -> None:
    """Refuses what a device could not store, or what would silence it for good."""
    if type(ack.epoch) is not int or not 0 <= ack.epoch <= MAX_NUMBER:
        raise Malformed(f"epoch {ack.epoch!r} of an acknowledgement is not an integer from 0 to 2**63-1"[:200])
    ranges = ack.seqs.ranges
    if len(ranges) > MAX_ACK_RANGES:
        raise Malformed(f"an acknowledgement of {len(ranges)} ranges, {MAX_ACK_RANGES} are allowed")
    if ranges and not 1 <= ranges[0][0] <= ranges[-1][1] <= MAX_NUMBER:
        raise Malformed(f"an acknowledgement of {ack.seqs.first} to {ack.seqs.last}, outside 1 to 2**63-1")
    # Bounds on both sides: NaN is within none.
    if type(ack.pause_s) not in (int, float) or not 0 <= ack.pause_s <= MAX_PAUSE_S:
        raise Malformed(f"a pause of {ack.pause_s!r} s is outside 0 to {MAX_PAUSE_S:.0f}"[:200])
    if not isinstance(ack.refusal, str) or len(ack.refusal) > MAX_REFUSAL_CHARACTERS:
        raise Malformed(f"a reason that is not a text of at most {MAX_REFUSAL_CHARACTERS} characters")
