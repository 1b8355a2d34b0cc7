"""Where messages stand in a partition of a topic, in one cluster."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

# Whether an empty partition has been read to its end. Pure.

ASK_S: Final = 10.0
"""While nothing comes, the end is asked for so often."""
WITHHELD: Final = "the cluster does not deliver existing messages"
"""Why a subscription is given up."""
_TIMES_BEYOND: Final = 2
"""What came just now is on its way: only an end that is asked for again, with nothing in between, is withheld."""


class Silence:
    """What is known of a partition's end. `now_s`: of a clock that only goes forward.

    Who acknowledges messages in any order may leave gaps when it ends: whoever subscribes then gets one of the middle,
    and nothing behind it. With `on_begin` only what came since the subscription was made must come: of that nobody else
    can have acknowledged anything. Without it all must come that stands behind what was read.
    """

    def __init__(self) -> None:
        self._settled: EntryPosition | None = None
        # asked for a second time, and not there yet
        self._owed: EntryPosition | None = None
        self._asked_s = 0.0
        self._beyond = 0

    @property
    def is_withheld(self) -> bool:
        """Whether the cluster does not deliver existing messages."""
        return self._beyond >= _TIMES_BEYOND

    def problem(self, *, is_connected: bool) -> str:
        """Why what there is may not come; empty when nothing is wrong."""
        if not is_connected:
            return "the connection to the cluster is lost"
        return WITHHELD if self.is_withheld else ""

    def on_begin(self, position: EntryPosition, now_s: float) -> None:
        """The partition ended there just after the subscription was made."""
        if self._settled is None:
            self._settled, self._asked_s = position, now_s

    def on_read(self, position: EntryPosition, now_s: float) -> None:
        """What stands there was given: for the first time, or again, as what was not acknowledged is."""
        self._settled = position if self._settled is None else max(self._settled, position)
        if self._owed is not None and position >= self._owed:
            self._owed = None
        self._asked_s, self._beyond = now_s, 0

    def on_asked_again(self, last: EntryPosition, now_s: float) -> None:
        """Messages were asked for again, of which the last stands there."""
        self._owed, self._asked_s, self._beyond = last, now_s, 0

    def is_to_ask(self, now_s: float) -> bool:
        """Whether it is time to ask where the partition ends."""
        return self._settled is not None and now_s - self._asked_s >= ASK_S

    def on_end(self, position: EntryPosition, now_s: float) -> None:
        """The cluster says that the partition ends there."""
        self._asked_s = now_s
        is_beyond = self._owed is not None or (self._settled is not None and position > self._settled)
        self._beyond = self._beyond + 1 if is_beyond else 0


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
