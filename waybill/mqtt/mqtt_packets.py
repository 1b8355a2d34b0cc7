"""The packets of MQTT 5 that come by the thousand, PUBLISH and PUBACK: read, made, and kept until they are answered."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode

__all__ = [
    "LARGEST_PACKET",
    "MqttMessage",
    "Publications",
    "publish_fault",
    "read_puback",
    "read_publish",
    "remaining_length",
]

LARGEST_PACKET = 0xFFFFFFF
"""Of MQTT itself, in bytes (1.5.5)."""
_MAX_MID = 0xFFFF
_LENGTH = struct.Struct(">H")
_QOS_1, _RETAIN, _DUP = 0x32, 1, 8


class MqttMessage(NamedTuple):
    """A PUBLISH packet. Its topic is text: what is no UTF-8 in it is replaced. `missing`: bytes that were not kept.

    `mid`: the packet id, 0 for QoS 0, which is not acknowledged. `retain`: the broker had it before the subscription.
    """

    mid: int
    qos: int
    dup: bool
    topic: str
    payload: bytes
    missing: int = 0
    retain: bool = False


class Publications:
    """Our publications of QoS 1 that have no PUBACK yet, in the order in which they were made."""

    def __init__(self) -> None:
        self._packets: dict[int, bytes] = {}
        self._last_id = 0

    def __len__(self) -> int:
        return len(self._packets)

    def add(self, mid: int, topic: str, payload: bytes, *, retain: bool) -> bytes:
        """The packet of a new publication under an id that was taken for it."""
        name = topic.encode()
        rest = b"".join((_LENGTH.pack(len(name)), name, _LENGTH.pack(mid), b"\0", payload))
        packet = bytes((_QOS_1 | _RETAIN if retain else _QOS_1, *_digits(len(rest)))) + rest
        self._packets[mid] = packet
        return packet

    def take_id(self) -> int:
        """The next id under which no publication waits."""
        mid = self._last_id % _MAX_MID + 1
        while mid in self._packets:
            mid = mid % _MAX_MID + 1
        self._last_id = mid
        return mid

    def try_answer(self, mid: int) -> bool:
        """The broker answered; whether a publication of this id waited for it."""
        return self._packets.pop(mid, None) is not None

    def again(self) -> Iterator[bytes]:
        """The packets to send on a new connection, marked as repeated (4.4)."""
        for packet in self._packets.values():
            yield bytes((packet[0] | _DUP,)) + packet[1:]


def read_puback(packet: bytes) -> tuple[int, ReasonCode]:
    """The id and the reason of a PUBACK (3.4), given what follows its length. Raises ValueError."""
    if len(packet) < 2:
        raise ValueError("a malformed packet")
    return packet[0] << 8 | packet[1], _reason(packet[2] if len(packet) > 2 else 0)


@cache
def _reason(value: int) -> ReasonCode:
    try:
        return ReasonCode(PacketTypes.PUBACK, identifier=value)
    except KeyError as error:
        raise ValueError(f"a PUBACK with the reason {value}, which there is not") from error


def _digits(length: int) -> Iterator[int]:
    while length > 0x7F:
        yield length & 0x7F | 0x80
        length >>= 7
    yield length


def publish_fault(message: MqttMessage) -> str:
    """Why no broker may send this; empty where it may."""
    if message.qos > 1:  # nobody subscribes with it
        return f"the broker sent a message of QoS {message.qos}"
    if message.qos and not message.mid:  # it could never be acknowledged
        return "the broker sent a message with the packet id 0"
    return ""


def remaining_length(data: bytes, at: int) -> tuple[int, int]:
    """Where what follows begins, and how long it is (1.5.5); 0, 0 if that has not come yet.

    Where it is no length, more than any packet has.
    """
    if at + 1 < len(data) and (high := data[at + 1]) < 0x80 <= data[at]:
        return at + 2, data[at] & 0x7F | high << 7  # nearly every batch has a length of two bytes
    length = shift = 0
    for place in range(at, min(at + 4, len(data))):
        digit = data[place]
        length |= (digit & 0x7F) << shift
        if digit < 0x80:
            return place + 1, length
        shift += 7
    return (0, 0) if shift < 28 else (at + 4, LARGEST_PACKET + 1)


def read_publish(first: int, packet: bytes, length: int | None = None) -> MqttMessage:
    """The message of an MQTT 5 PUBLISH (3.3): its first byte, and what follows the remaining length.

    `length`: what the packet had before it was truncated. The properties are passed over as a whole, in constant time:
    no value that a publisher puts there can matter. Raises ValueError when the packet ends before what it announces.
    """
    whole = len(packet) if length is None else length
    qos = (first >> 1) & 3
    mid = 0
    try:
        offset = topic_end = 2 + (packet[0] << 8 | packet[1])
        if qos:
            mid = packet[offset] << 8 | packet[offset + 1]
            offset += 2
        begin, properties = (offset + 1, packet[offset]) if packet[offset] < 0x80 else remaining_length(packet, offset)
        offset = begin + properties
        # Against what the packet had: of a truncated one the properties may be what is cut off.
        if not begin or offset > whole:
            raise IndexError(offset)
    except IndexError as error:
        raise ValueError(f"a PUBLISH of {whole} bytes ends early") from error
    topic = packet[2:topic_end].decode("utf-8", "replace")
    missing = whole - max(offset, len(packet))
    return MqttMessage(mid, qos, bool(first & _DUP), topic, packet[offset:], missing, bool(first & _RETAIN))
