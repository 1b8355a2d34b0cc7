"""What a new owner of a partition has to know: the messages of a bounded time before the one where it goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pulsar

from gateway.errors import PulsarUnreachable
from waybill.pulsar.pulsar_positions import MessagePosition, position_of

__all__ = ["RewindEnd", "rewound"]

_WAIT_MS: Final = 1000
_MAX_SILENCES: Final = 10
"""A reader that gives nothing for so many seconds, while the cluster says there is more, has failed."""
_RECEIVER_QUEUE: Final = 2000


class RewindEnd(NamedTuple):
    """Up to where a partition is rewound: before the message at `position`, or with `included` up to it."""

    position: MessagePosition
    included: bool

    def is_before(self, position: MessagePosition) -> bool:
        """Whether a message stands after what is rewound."""
        return position > self.position if self.included else position >= self.position

    def is_last(self, position: MessagePosition) -> bool:
        """Whether the message there is the last one that is rewound, as far as its place says."""
        return self.included and position >= self.position


def rewound(client: Any, partition: str, start: int | Any, end: RewindEnd) -> Iterator[Any]:
    """The messages of a partition from `start` up to an end.

    `start`: the moment from which on they were published (ms since 1970), or the id of the message behind which they
    come. By a reader of its own, which leaves nothing behind: the position of the subscription stays where it is.
    Raises PulsarUnreachable, and what the client raises.
    """
    since_ms = start if isinstance(start, int) else None
    begin = start if since_ms is None else pulsar.MessageId.earliest
    reader = client.create_reader(partition, begin, receiver_queue_size=_RECEIVER_QUEUE)
    try:
        if since_ms is not None:
            # by when a message was published, and inclusive: too much is read rather than too little
            reader.seek(since_ms)
        # after a seek the client asks the broker each time whether there is more: so it is asked at the beginning
        # and after a silence, and the end is known by its place
        silences, may_come = 0, reader.has_message_available()
        while may_come:
            try:
                message = reader.read_next(_WAIT_MS)
            except pulsar.Timeout:
                silences += 1
                may_come = reader.has_message_available()
                if may_come and silences >= _MAX_SILENCES:
                    raise PulsarUnreachable(f"{partition}: a reader gave nothing for {silences} s") from None
                continue
            silences, position = 0, position_of(message.message_id())
            if end.is_before(position):
                return
            yield message
            may_come = not end.is_last(position)
    finally:
        reader.close()
