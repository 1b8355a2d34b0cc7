"""Messages as the native client gives them: their ids and our positions, copies, and entries that no client reads.

A copy is made for another process; it answers to the native client's names.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

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


_Text = TypeVar("_Text")


@dataclass(frozen=True, slots=True)
class CopiedMessage:
    """What the columns and the look ahead ask of a native message; a text that is not UTF-8 raises as there."""

    serialized_id: bytes
    value: bytes
    null: bool
    key: str | UnicodeDecodeError
    message_properties: dict[str, str] | UnicodeDecodeError
    published_ms: int
    event_ms: int
    producer: str | UnicodeDecodeError
    encrypted: bool

    @classmethod
    def of(cls, native: Any, *, with_content: bool) -> "CopiedMessage | CopiedSize":
        """A copy of a native message; without content only its place and its size."""
        if not with_content:
            return CopiedSize(native.message_id().serialize(), native.length())
        return cls(
            native.message_id().serialize(),
            native.data(),
            native.has_null_value(),
            _text_or_error(native.partition_key),
            _text_or_error(native.properties),
            native.publish_timestamp(),
            native.event_timestamp(),
            _text_or_error(native.producer_name),
            native.encryption_context() is not None,
        )

    def message_id(self) -> Any:  # noqa: D102  # the native client's names, here and below
        return pulsar.MessageId.deserialize(self.serialized_id)

    def length(self) -> int:  # noqa: D102
        return len(self.value)

    def data(self) -> bytes:  # noqa: D102
        return self.value

    def has_null_value(self) -> bool:  # noqa: D102
        return self.null

    def partition_key(self) -> str:  # noqa: D102
        return _text_or_raise(self.key)

    def properties(self) -> dict[str, str]:  # noqa: D102
        return _text_or_raise(self.message_properties)

    def publish_timestamp(self) -> int:  # noqa: D102
        return self.published_ms

    def event_timestamp(self) -> int:  # noqa: D102
        return self.event_ms

    def producer_name(self) -> str:  # noqa: D102
        return _text_or_raise(self.producer)

    def encryption_context(self) -> object | None:  # noqa: D102
        return self.encrypted or None


@dataclass(frozen=True, slots=True)
class CopiedSize:
    """What the look ahead asks of a native message."""

    serialized_id: bytes
    size: int

    def message_id(self) -> Any:  # noqa: D102  # the native client's names, here and below
        return pulsar.MessageId.deserialize(self.serialized_id)

    def length(self) -> int:  # noqa: D102
        return self.size


@dataclass(frozen=True, slots=True)
class UnreadableEntry:
    """An entry that ends each client which is sent it, in the place of its messages: nothing of it is known."""

    position: LedgerPosition
    reason: str

    def message_id(self) -> Any:  # noqa: D102  # the native client's names, here and below
        return id_of(self.position)

    def length(self) -> int:  # noqa: D102
        return 0

    def data(self) -> bytes:  # noqa: D102
        return b""

    def has_null_value(self) -> bool:  # noqa: D102
        return True

    def partition_key(self) -> str:  # noqa: D102
        return ""

    def properties(self) -> dict[str, str]:  # noqa: D102
        return {}

    def publish_timestamp(self) -> int:  # noqa: D102
        return 0

    def event_timestamp(self) -> int:  # noqa: D102
        return 0

    def producer_name(self) -> str:  # noqa: D102
        return ""

    def encryption_context(self) -> object | None:  # noqa: D102
        return None


def _text_or_error(read: Callable[[], _Text]) -> _Text | UnicodeDecodeError:
    try:
        return read()
    except UnicodeDecodeError as error:
        return error


def _text_or_raise(text: _Text | UnicodeDecodeError) -> _Text:
    if isinstance(text, UnicodeDecodeError):
        raise text
    return text
