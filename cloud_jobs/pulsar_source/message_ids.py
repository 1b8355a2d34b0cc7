"""Between the native client's message ids and our positions."""

from collections.abc import Iterator
from typing import Any

import pulsar

from cloud_jobs.pulsar_source.position import WHOLE_ENTRY, LedgerPosition

_BATCH_SIZE_FIELD = 6


def position_of(message_id: Any) -> LedgerPosition:
    """The client's message id -> position of that message (batch -1 when it was sent alone)."""
    return LedgerPosition(message_id.ledger_id(), message_id.entry_id(), message_id.batch_index())


def id_of(position: LedgerPosition) -> Any:
    """Position -> the client's id of the last message that it takes in."""
    batch = -1 if position.batch == WHOLE_ENTRY else position.batch
    return pulsar.MessageId(-1, position.ledger, position.entry, batch)


def batch_size_of(message_id: Any) -> int:
    """How many messages the entry of this one holds; 1 when it was sent alone.

    The client keeps that number in the id but shows it only in its serialised form (protobuf, field 6, a varint).
    """
    number, fields = 0, _varints(message_id.serialize())
    for tag, value in fields:
        if tag >> 3 == _BATCH_SIZE_FIELD:
            number = value
    return max(1, number)


def _varints(serialized: bytes) -> Iterator[tuple[int, int]]:
    """(tag, value) of the leading varint fields of a protobuf message."""
    numbers: list[int] = []
    number = shift = 0
    for byte in serialized:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(number)
            number = shift = 0
            if len(numbers) % 2 == 1 and numbers[-1] & 7 != 0:
                break  # not a varint: nothing that we look for comes after it
    yield from zip(numbers[::2], numbers[1::2], strict=False)
