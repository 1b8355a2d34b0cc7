"""A PUBLISH packet, taken apart without looking at what it does not need."""

from __future__ import annotations

import struct
from typing import NamedTuple

_LENGTH = struct.Struct("!H")
_MAX_LENGTH_BYTES = 4


class InboundMessage(NamedTuple):
    """One message from the broker. `mid`: its packet id, 0 for QoS 0, which is not acknowledged."""

    topic: str
    payload: bytes
    mid: int


def read_publish(command: int, packet: bytes | bytearray) -> InboundMessage:
    """The message in an MQTT 5 PUBLISH: `command` is its first byte, `packet` what follows the remaining length.

    The properties are passed over as a whole, in constant time: no value that a publisher puts there can matter. Bytes
    of the topic that are not UTF-8 are replaced. Raises ValueError when the packet ends before what it announces.
    """
    view = memoryview(packet)
    try:
        (length,) = _LENGTH.unpack_from(view)
        at = _LENGTH.size + length
        topic = str(view[_LENGTH.size : at], "utf-8", "replace")
        mid = 0
        if command & 0x06:
            (mid,) = _LENGTH.unpack_from(view, at)
            at += _LENGTH.size
        at = _after_properties(view, at)
    except (IndexError, struct.error) as error:
        raise ValueError(f"a PUBLISH of {len(packet)} bytes ends early") from error
    return InboundMessage(topic, bytes(view[at:]), mid)


def _after_properties(view: memoryview, at: int) -> int:
    length = 0
    for position in range(_MAX_LENGTH_BYTES):
        byte = view[at + position]
        length |= (byte & 0x7F) << (7 * position)
        if not byte & 0x80:
            end = at + position + 1 + length
            if end > len(view):
                raise IndexError(end)
            return end
    raise IndexError(at)
