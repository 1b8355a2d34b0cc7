"""What a broker says of one topic partition's managed ledger, and the arithmetic on it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from cloud_jobs.pulsar_source.position import Position


@dataclass(frozen=True, slots=True)
class Ledger:
    """A run of entries 0..entries-1; `size` in bytes."""

    number: int
    entries: int
    size: int


@dataclass(frozen=True, slots=True)
class TopicState:
    """One topic partition at one moment.

    `last`: the newest entry (entry -1 of a ledger when there is none). `cursor`: what the subscription has
    acknowledged, None when it does not exist. `replicated`: whether that cursor travels to the other clusters.
    """

    ledgers: tuple[Ledger, ...]
    last: Position
    cursor: Position | None
    replicated: bool = False

    @classmethod
    def from_stats(cls, stats: Mapping[str, Any], subscription: str) -> Self:
        """The admin REST's internal statistics of a topic -> state, seen from one subscription."""
        last = Position.parse(stats["lastConfirmedEntry"])
        size = stats["currentLedgerSize"]
        ledgers = tuple(_ledger(row, last, size) for row in stats["ledgers"])
        cursor = stats["cursors"].get(subscription)
        if cursor is None:
            return cls(ledgers, last, None)
        replicated = "pulsar.replicated.subscription" in cursor.get("properties", {})
        return cls(ledgers, last, Position.parse(cursor["markDeletePosition"]), replicated)

    @property
    def first_ledger(self) -> int:
        """The oldest ledger that is still there; the newest entry's own when the list is empty."""
        return self.ledgers[0].number if self.ledgers else self.last.ledger

    def entries_between(self, start: Position, end: Position) -> int:
        """How many entries after `start`, up to and with the whole entry `end`, are still stored."""
        return sum(_overlap(ledger, start, end) for ledger in self.ledgers)

    def has_more_than(self, start: Position) -> bool:
        """True when there is an entry, or the rest of one, after `start`."""
        return self.entries_between(start, self.last) > 0

    def mean_entry_size(self) -> float:
        """Bytes of a stored entry on average; 0 when nothing is stored."""
        entries = sum(ledger.entries for ledger in self.ledgers)
        return sum(ledger.size for ledger in self.ledgers) / entries if entries else 0.0

    def loss_after(self, start: Position) -> str | None:
        """What is known to be gone of the messages after `start`, in words; None when nothing is.

        The broker removes a ledger when every cursor has left it. With the subscription's cursor where the query left
        it, a removed ledger therefore held nothing unread. Unread messages are gone when the subscription itself was
        removed, or when somebody else (TTL, quota, an operator) moved its cursor past `start` into later ledgers.
        """
        if start.ledger >= self.first_ledger or start.ledger < 0:
            return None
        if self.cursor is None:
            return f"its subscription was removed; the oldest ledger is {self.first_ledger}, not {start.ledger}"
        if self.cursor >= Position(self.first_ledger, 0):
            return f"the cursor stands at {self.cursor}, the query at {start}, and ledger {start.ledger} is removed"
        return None


def _ledger(row: Mapping[str, Any], last: Position, open_size: int) -> Ledger:
    number, entries = row["ledgerId"], row["entries"]
    if entries == 0 and number == last.ledger:
        # The open ledger is listed with 0 entries until it is closed.
        return Ledger(number, last.entry + 1, open_size)
    return Ledger(number, entries, row["size"])


def _overlap(ledger: Ledger, start: Position, end: Position) -> int:
    after = -1
    if ledger.number == start.ledger:
        # An entry of which only some messages are behind still counts as ahead.
        after = start.entry if start == Position(start.ledger, start.entry) else start.entry - 1
    elif ledger.number < start.ledger:
        return 0
    upto = ledger.entries - 1
    if ledger.number == end.ledger:
        upto = min(upto, end.entry)
    elif ledger.number > end.ledger:
        return 0
    return max(0, upto - after)
