"""Messages outside of the native client: copies for another process, and entries that no client reads."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import pulsar

from cloud_jobs.pulsar_source.message_ids import id_of
from cloud_jobs.pulsar_source.position import Position

_Text = TypeVar("_Text")


@dataclass(frozen=True, slots=True)
class CopiedMessage:
    """What the columns and the look ahead ask of a native message; a text that is not UTF-8 raises as there."""

    serialized_id: bytes
    value: bytes
    null: bool
    key: str | UnicodeDecodeError
    named: dict[str, str] | UnicodeDecodeError
    published_ms: int
    happened_ms: int
    producer: str | UnicodeDecodeError
    encrypted: bool

    @classmethod
    def of(cls, native: Any, *, with_content: bool) -> "CopiedMessage | CopiedPiece":
        """A copy of a native message; without content only its place and its size."""
        if not with_content:
            return CopiedPiece(native.message_id().serialize(), native.length())
        return cls(
            native.message_id().serialize(),
            native.data(),
            native.has_null_value(),
            _read(native.partition_key),
            _read(native.properties),
            native.publish_timestamp(),
            native.event_timestamp(),
            _read(native.producer_name),
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
        return _told(self.key)

    def properties(self) -> dict[str, str]:  # noqa: D102
        return _told(self.named)

    def publish_timestamp(self) -> int:  # noqa: D102
        return self.published_ms

    def event_timestamp(self) -> int:  # noqa: D102
        return self.happened_ms

    def producer_name(self) -> str:  # noqa: D102
        return _told(self.producer)

    def encryption_context(self) -> object | None:  # noqa: D102
        return self.encrypted or None


@dataclass(frozen=True, slots=True)
class CopiedPiece:
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

    place: Position
    reason: str

    def message_id(self) -> Any:  # noqa: D102  # the native client's names, here and below
        return id_of(self.place)

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


def _read(read: Callable[[], _Text]) -> _Text | UnicodeDecodeError:
    try:
        return read()
    except UnicodeDecodeError as error:
        return error


def _told(text: _Text | UnicodeDecodeError) -> _Text:
    if isinstance(text, UnicodeDecodeError):
        raise text
    return text
