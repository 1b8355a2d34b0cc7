"""What a new owner of a partition has to know: the messages of a bounded time before the one where it goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pulsar

from gateway.errors import PulsarUnreachable

__all__ = ["MessagePosition", "RewindEnd", "position_of", "rewound"]

_WAIT_MS: Final = 1000
_MAX_SILENCES: Final = 10
"""A reader that gives nothing for so many seconds, while the cluster says there is more, has failed."""
_RECEIVER_QUEUE: Final = 2000


class MessagePosition(NamedTuple):
    """Where a message stands in its partition: positions compare as their messages came."""

    ledger: int
    entry: int
    batch_index: int


class RewindEnd(NamedTuple):
    """Up to where a partition is rewound: before the message at `position`, or with `included` up to it."""

    position: MessagePosition
    included: bool

    def is_before(self, position: MessagePosition) -> bool:
        """Whether a message stands after what is rewound."""
        return position > self.position if self.included else position >= self.position


def position_of(message_id: Any) -> MessagePosition:
    """The position of a message's id, or of the last one of a topic."""
    return MessagePosition(message_id.ledger_id(), message_id.entry_id(), message_id.batch_index())


def rewound(client: Any, partition: str, since_ms: int, end: RewindEnd) -> Iterator[Any]:
    """The messages of a partition that were published since a moment (ms since 1970), up to an end.

    By a reader of its own, which leaves nothing behind: the position of the subscription stays where it is. Raises
    PulsarUnreachable, and what the client raises.
    """
    reader = client.create_reader(partition, pulsar.MessageId.earliest, receiver_queue_size=_RECEIVER_QUEUE)
    try:
        reader.seek(since_ms)
        # seek is by when a message was published, and inclusive: too much is read rather than too little
        silences = 0
        while reader.has_message_available():
            try:
                message = reader.read_next(_WAIT_MS)
            except pulsar.Timeout:
                silences += 1
                if silences >= _MAX_SILENCES:
                    raise PulsarUnreachable(f"{partition}: a reader gave nothing for {silences} s") from None
                continue
            silences = 0
            if end.is_before(position_of(message.message_id())):
                return
            yield message
    finally:
        reader.close()
