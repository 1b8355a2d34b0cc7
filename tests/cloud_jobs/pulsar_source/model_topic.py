"""A partition in memory: ledgers of entries, a cursor, and what an operator can do to both."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from cloud_jobs.pulsar_source.position import (
    BEGINNING,
    LedgerInfo,
    LedgerPosition,
    PartitionState,
    Role,
    SubscriptionProperties,
)

Entry = tuple[int, ...]
"""The messages of an entry, by number; an empty one is a marker, which no consumer is given."""


class Broken(tuple[int, ...]):
    """The entry of something that a broker gives every consumer, and every client drops."""


class ChunkEnd(Broken):
    """The last chunk of a message whose other chunks were sent before."""


def is_marker(entry: Entry) -> bool:
    return not entry and not isinstance(entry, Broken)


@dataclass
class ModelTopic:
    """One topic partition: its ledgers, the newest open, and one durable subscription."""

    ledgers: dict[int, list[Entry]]
    opened: str
    cursor: LedgerPosition | None = None
    notes: SubscriptionProperties | None = None
    subscribed: int = 0
    present: dict[Role, set[str]] = field(default_factory=lambda: {"owner": set(), "candidate": set()})
    """The queries that have a reader here."""
    held_from: LedgerPosition | None = None
    """The first entry of an open transaction: nothing from there on is delivered."""
    holes: set[LedgerPosition] = field(default_factory=set)
    """Entries that somebody acknowledged one by one."""
    compacted: LedgerPosition = BEGINNING
    """The end of the last compaction; each message has a key of its own, so all of them are kept."""

    def is_held(self, place: LedgerPosition) -> bool:
        return self.held_from is not None and place >= self.held_from

    @property
    def last(self) -> LedgerPosition:
        number = max(self.ledgers)
        return LedgerPosition(number, len(self.ledgers[number]) - 1)

    def entries(self) -> Iterator[tuple[LedgerPosition, Entry]]:
        for number, entries in sorted(self.ledgers.items()):
            for index, entry in enumerate(entries):
                yield LedgerPosition(number, index), entry

    def messages(self) -> set[int]:
        return {message for _, entry in self.entries() for message in entry}

    def unread(self) -> set[int]:
        return {message for at, entry in self.entries() if self.cursor is None or at > self.cursor for message in entry}

    def subscribe(self) -> None:
        if self.cursor is None:
            self.cursor = LedgerPosition(min(self.ledgers), -1)
            self.notes = None
            self.subscribed += 1

    def acknowledge(self, place: LedgerPosition) -> None:
        assert self.cursor is not None
        if self.cursor < place <= self.last:
            self.cursor = place
            self._follow()

    def acknowledge_one(self, place: LedgerPosition) -> None:
        """By a consumer that is not ours; the cursor goes on where nothing is left before it."""
        self.holes.add(place)
        self._follow()

    def _follow(self) -> None:
        for position, _ in list(self.entries()):
            if self.cursor is not None and position > self.cursor:
                if position not in self.holes:
                    break
                self.cursor = position

    def skip(self, count: int) -> None:
        for position, _ in list(self.entries()):
            if self.cursor is not None and position > self.cursor and count > 0:
                self.cursor, count = position, count - 1

    def trim(self) -> set[int]:
        """Removes the ledgers that the cursor has left; returns what they held."""
        gone: set[int] = set()
        for number in sorted(self.ledgers)[:-1]:
            if self.cursor is not None and self.cursor < LedgerPosition(number, len(self.ledgers[number]) - 1):
                break
            gone |= {message for entry in self.ledgers.pop(number) for message in entry}
            if self.cursor is not None and self.cursor.ledger == number:
                self.cursor = LedgerPosition(min(self.ledgers), -1)
        return gone

    def state(self) -> PartitionState:
        rows = tuple(LedgerInfo(number, len(rows), 10 * len(rows)) for number, rows in sorted(self.ledgers.items()))
        owners, candidates = frozenset(self.present["owner"]), frozenset(self.present["candidate"])
        return PartitionState(
            rows, self.last, self.cursor, self.opened, owners, str(self.subscribed), candidates, self.compacted
        )
