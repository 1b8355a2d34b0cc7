"""The little of protobuf and of Pulsar's framing that is needed to look at what a broker sends. Pure.

A protobuf message is read as number of the field -> its value, the last one where it comes twice: enough for what is
looked at here. Bad bytes are a ValueError.
"""

from collections.abc import Mapping
from typing import NamedTuple

Value = int | bytes

_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10
_BATCH, _UUID, _CHUNKS, _CHUNK = 11, 26, 27, 29


class EntryMetadata(NamedTuple):
    """The part of an entry's metadata that is looked at; 0 and an empty text where the producer set nothing."""

    messages: int
    uuid: str
    chunk: int
    chunks: int


def encode(fields: Mapping[int, Value]) -> bytes:
    """Number of the field -> value, as protobuf."""
    parts = []
    for number, value in fields.items():
        if isinstance(value, int):
            parts.append(_varint(number << 3 | _VARINT) + _varint(value))
        else:
            parts.append(_varint(number << 3 | _BYTES) + _varint(len(value)) + value)
    return b"".join(parts)


def decode(data: bytes) -> dict[int, Value]:
    """The reverse of `encode`."""
    found: dict[int, Value] = {}
    offset = 0
    while offset < len(data):
        tag, offset = _read_varint(data, offset)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            found[number], offset = _read_varint(data, offset)
            continue
        length = {_FIXED_64: 8, _FIXED_32: 4}.get(kind)
        if kind == _BYTES:
            length, offset = _read_varint(data, offset)
        if length is None or offset + length > len(data):
            raise ValueError(f"no protobuf at byte {offset}")
        found[number] = data[offset : offset + length]
        offset += length
    return found


def numbers(fields: Mapping[int, Value], *wanted: int) -> list[int]:
    """The values of integer fields; ValueError when one is missing or of another type."""
    found = [fields.get(number) for number in wanted]
    if not all(isinstance(value, int) for value in found):
        raise ValueError(f"fields {wanted} are not all numbers: {found}")
    return [value for value in found if isinstance(value, int)]


def frame(kind: int, fields: Mapping[int, Value]) -> bytes:
    """A command of Pulsar's, with its lengths before it."""
    command = encode({1: kind, kind: encode(fields)})
    return (len(command) + 4).to_bytes(4) + len(command).to_bytes(4) + command


def entry_metadata(metadata: bytes) -> EntryMetadata:
    """An entry's metadata -> the part of it that is looked at."""
    fields = decode(metadata)

    def integer(number: int) -> int | None:
        value = fields.get(number)
        # An int32 that is negative is sent as 64 bits.
        return None if not isinstance(value, int) else value - (1 << 64 if value >> 63 else 0)

    uuid = fields.get(_UUID)
    text = uuid.decode(errors="replace") if isinstance(uuid, bytes) else ""
    return EntryMetadata(integer(_BATCH) or 1, text, integer(_CHUNK) or 0, integer(_CHUNKS) or 0)


def _varint(number: int) -> bytes:
    parts = bytearray()
    while number >= 0x80:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def _read_varint(data: bytes, offset: int) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(data[offset : offset + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, offset + index + 1
    raise ValueError(f"no number at byte {offset}")
