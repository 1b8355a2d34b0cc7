"""Messages outside of the native client: copies for another process, and entries that no client reads."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import pulsar

from cloud_jobs.pulsar_source.message_ids import id_of
from cloud_jobs.pulsar_source.position import LedgerPosition

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
