"""What a gateway tells a device: the ranges that are safe, how long to pause, or that a batch was refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgpack

from telemetry.errors import Malformed
from telemetry.intervals import IntervalSet

_TAKEN = "ranges"
_NOT_TAKEN = "refused_ranges"


@dataclass(frozen=True, slots=True)
class Ack:
    """`ranges` of `epoch` are persisted and may be deleted; with `refused` (why not) they are the ones *not* taken.

    `pause_s`: send nothing for so long.
    """

    epoch: int = 0
    ranges: IntervalSet = field(default_factory=IntervalSet)
    pause_s: float = 0.0
    refused: str = ""


def encode_ack(ack: Ack) -> bytes:
    """An acknowledgement as it travels: a msgpack map without the parts that say nothing.

    Ranges that are not taken travel under a key of their own: a device that does not know it must not delete them.
    """
    ranges = _NOT_TAKEN if ack.refused else _TAKEN
    message: dict[str, Any] = {"epoch": ack.epoch, ranges: [list(bounds) for bounds in ack.ranges.ranges]}
    if ack.pause_s:
        message["pause_s"] = ack.pause_s
    if ack.refused:
        message["refused"] = ack.refused
    packed: bytes = msgpack.packb(message)
    return packed


def decode_ack(data: bytes) -> Ack:
    """The acknowledgement. Unknown keys are passed over, for gateways newer than a device. Raises Malformed."""
    try:
        message = msgpack.unpackb(data, raw=False)
        refused = str(message.get("refused", ""))
        named = message.get(_NOT_TAKEN if refused else _TAKEN, ())
        ranges = IntervalSet((int(first), int(last)) for first, last in named)
        return Ack(int(message.get("epoch", 0)), ranges, float(message.get("pause_s", 0)), refused)
    except (AttributeError, TypeError, ValueError, msgpack.UnpackException) as error:
        raise Malformed(f"an acknowledgement that cannot be read: {error}") from error
