"""Positions of messages in a partition of a topic, in one cluster."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

# Whether an empty partition has been read to its end. Pure.

ASK_S: Final = 10.0
"""How often the end is asked for while no message arrives."""
WITHHELD: Final = "the cluster does not deliver existing messages"
"""The reason for giving up a subscription."""
_TIMES_BEYOND: Final = 2
"""A new message may be on its way: only the second such answer in a row counts."""


class Silence:
    """Notices that a cluster withholds messages of a partition. `now_s`: monotonic.

    A subscription may have gaps of acknowledged messages; a later subscriber then gets a message of the middle, and
    nothing after it. With `on_begin` only messages since the subscription began must arrive, for nobody else can have
    acknowledged them. Without it all messages after the last read one must arrive.
    """

    def __init__(self) -> None:
        self._settled: EntryPosition | None = None
        # asked for a second time, and not there yet
        self._owed: EntryPosition | None = None
        self._asked_s = 0.0
        self._beyond = 0

    @property
    def is_withheld(self) -> bool:
        return self._beyond >= _TIMES_BEYOND

    def problem(self, *, is_connected: bool) -> str:
        """Why messages may not arrive; "" if nothing is wrong."""
        if not is_connected:
            return "the connection to the cluster is lost"
        return WITHHELD if self.is_withheld else ""

    def on_begin(self, position: EntryPosition, now_s: float) -> None:
        """The end of the partition just after the subscription began."""
        if self._settled is None:
            self._settled, self._asked_s = position, now_s

    def on_read(self, position: EntryPosition, now_s: float) -> None:
        """A message was received, for the first time or again."""
        self._settled = position if self._settled is None else max(self._settled, position)
        if self._owed is not None and position >= self._owed:
            self._owed = None
        self._asked_s, self._beyond = now_s, 0

    def on_asked_again(self, last: EntryPosition, now_s: float) -> None:
        """Messages up to `last` were asked for again."""
        self._owed, self._asked_s, self._beyond = last, now_s, 0

    def is_to_ask(self, now_s: float) -> bool:
        """Whether it is time to ask for the end of the partition."""
        return self._settled is not None and now_s - self._asked_s >= ASK_S

    def on_end(self, position: EntryPosition, now_s: float) -> None:
        self._asked_s = now_s
        is_beyond = self._owed is not None or (self._settled is not None and position > self._settled)
        self._beyond = self._beyond + 1 if is_beyond else 0


class EntryPosition(NamedTuple):
    """The position of an entry: one message, or several that were sent together."""

    ledger: int
    entry: int


class MessagePosition(NamedTuple):
    """The position of a message; positions sort in the order of the messages."""

    ledger: int
    entry: int
    batch_index: int

    @property
    def of_entry(self) -> EntryPosition:
        return EntryPosition(self.ledger, self.entry)


def position_of(message_id: Any) -> MessagePosition:
    return MessagePosition(message_id.ledger_id(), message_id.entry_id(), message_id.batch_index())
