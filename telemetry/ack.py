"""What a gateway tells a device: the ranges that are safe, how long to pause, or that a batch was refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgpack

from telemetry.errors import Malformed
from telemetry.intervals import IntervalSet


@dataclass(frozen=True, slots=True)
class Ack:
    """`ranges` of `epoch` are persisted and may be deleted. `pause_s`: send nothing for so long. `refused`: why not."""

    epoch: int = 0
    ranges: IntervalSet = field(default_factory=IntervalSet)
    pause_s: float = 0.0
    refused: str = ""


def encode_ack(ack: Ack) -> bytes:
    """An acknowledgement as it travels: a msgpack map without the parts that say nothing."""
    message: dict[str, Any] = {"epoch": ack.epoch, "ranges": [list(bounds) for bounds in ack.ranges.ranges]}
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
        ranges = IntervalSet((int(first), int(last)) for first, last in message.get("ranges", ()))
        return Ack(
            int(message.get("epoch", 0)),
            ranges,
            float(message.get("pause_s", 0)),
            str(message.get("refused", "")),
        )
    except (AttributeError, TypeError, ValueError, msgpack.UnpackException) as error:
        raise Malformed(f"an acknowledgement that cannot be read: {error}") from error
