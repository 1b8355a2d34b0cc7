"""Where messages stand in a partition of a topic, in one cluster."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["EntryPosition", "MessagePosition", "position_of"]


class EntryPosition(NamedTuple):
    """Where an entry stands in its partition: a message, or several that were sent together."""

    ledger: int
    entry: int


class MessagePosition(NamedTuple):
    """Where a message stands in its partition: positions compare as their messages came."""

    ledger: int
    entry: int
    batch_index: int

    @property
    def of_entry(self) -> EntryPosition:
        """Where the entry stands that has the message."""
        return EntryPosition(self.ledger, self.entry)


def position_of(message_id: Any) -> MessagePosition:
    """The position of a message's id, or of the last one of a partition."""
    return MessagePosition(message_id.ledger_id(), message_id.entry_id(), message_id.batch_index())
