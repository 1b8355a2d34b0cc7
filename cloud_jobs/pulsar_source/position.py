"""Positions in topics, offsets of a query, and the state of a partition in one cluster."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Self, get_args

WHOLE_ENTRY = 2**31 - 1
"""Batch index of a position that takes in its entry to the last message."""


class LedgerPosition(NamedTuple):
    """The last message included: everything up to it is behind, everything after it ahead.

    Positions order the messages of one topic partition of **one** cluster; in another cluster they mean nothing. Entry
    -1 is the place before the first entry of a ledger.
    """

    ledger: int
    entry: int
    batch: int = WHOLE_ENTRY

    def __str__(self) -> str:
        whole = self.batch == WHOLE_ENTRY
        return f"{self.ledger}:{self.entry}" if whole else f"{self.ledger}:{self.entry}:{self.batch}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """`ledger:entry` or `ledger:entry:batch` -> position. Raises ValueError."""
        with suppress(ValueError):
            numbers = [int(part) for part in text.split(":")]
            if len(numbers) in {2, 3}:
                return cls(*numbers)
        raise ValueError(f"{text!r} is not a position: expected ledger:entry or ledger:entry:batch")


_VERSION = 3

BEGINNING = LedgerPosition(-1, -1)
"""Before every message of every ledger."""


@dataclass(frozen=True, slots=True)
class Offset:
    """The progress of a query: one position per topic partition, in one named cluster.

    `origin`: where the batch that ends here begins, for partitions that the previous offset lacks: all of them after a
    change of cluster, and new ones. A replay therefore reads the same range again.

    `generations`: topic partition -> the life of the subscription in which the position was read, see
    `SubscriptionProperties`. A position from another life of the topic or the disks is never used.

    `query`: the id of the query, which its failover file has too. `restarts`: how often reading continued at a cursor.
    Without it, a batch that is planned again because it was closed unread would have the same text, and Spark would see
    no change.
    """

    cluster: str
    positions: Mapping[str, LedgerPosition]
    origin: Mapping[str, LedgerPosition] = field(default_factory=dict)
    generations: Mapping[str, str] = field(default_factory=dict)
    query: str = ""
    restarts: int = 0

    def to_json(self) -> dict[str, Any]:
        """The offset as a dict with sorted keys: Spark compares offsets as text."""
        document: dict[str, Any] = {"cluster": self.cluster}
        if self.origin:
            document["from"] = _texts(self.origin)
        document["generations"] = dict(sorted(self.generations.items()))
        document["positions"] = _texts(self.positions)
        document["query"] = self.query
        document["restarts"] = self.restarts
        document["version"] = _VERSION
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """The reverse of `to_json`. Raises ValueError for another shape or version."""
        try:
            version = document.get("version", 1)
            if version != _VERSION:
                raise ValueError(
                    f"the checkpoint has offsets of version {version} of the Pulsar source, this one reads version "
                    f"{_VERSION}: begin with a new checkpoint; the query then begins at its subscription's cursor"
                )
            return cls(
                document["cluster"],
                _positions(document["positions"]),
                _positions(document.get("from", {})),
                dict(document["generations"]),
                document["query"],
                document["restarts"],
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not an offset of the Pulsar source: {document!r}") from error


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """The messages of one topic partition after `start`, up to and including `end`."""

    topic: str
    start: LedgerPosition
    end: LedgerPosition


def ranges(start: Offset, end: Offset) -> Iterator[PartitionRange]:
    """The ranges between two offsets, per topic partition, in the cluster of `end`.

    Between neighbours in one cluster: from `start` to `end`. Where `end` has an origin: from there (see `Offset`). A
    partition without either starts at the beginning; one that `end` lacks is omitted.
    """
    if end.cluster != start.cluster and not end.origin:
        raise ValueError(f"offset of cluster {end.cluster!r} follows one of {start.cluster!r} without an origin")
    begin = {**(start.positions if end.cluster == start.cluster else {}), **end.origin}
    for topic, last in sorted(end.positions.items()):
        first = begin.get(topic, BEGINNING)
        if last > first:
            yield PartitionRange(topic, first, last)


def _texts(positions: Mapping[str, LedgerPosition]) -> dict[str, str]:
    return {topic: str(position) for topic, position in sorted(positions.items())}


def _positions(texts: Mapping[str, str]) -> dict[str, LedgerPosition]:
    return {topic: LedgerPosition.parse(text) for topic, text in texts.items()}


def positions_backwards(
    ledgers: Sequence[tuple[int, int]], end: LedgerPosition, after: LedgerPosition
) -> Iterator[LedgerPosition]:
    """The positions from `end` back to the one behind `after`; `ledgers`: (number, entries) in order."""
    for number, entries in reversed(ledgers):
        newest = min(entries - 1, end.entry) if number == end.ledger else entries - 1
        if number <= end.ledger:
            for entry in range(newest, -1, -1):
                if (number, entry) <= (after.ledger, after.entry):
                    return
                yield LedgerPosition(number, entry)


def next_entry(ledgers: Sequence[tuple[int, int]], position: LedgerPosition) -> LedgerPosition:
    """The entry stored after a position; `ledgers`: (number, entries) in order."""
    if position.entry + 1 < dict(ledgers).get(position.ledger, 0):
        return LedgerPosition(position.ledger, position.entry + 1)
    later = (LedgerPosition(number, 0) for number, entries in ledgers if number > position.ledger and entries)
    return next(later, LedgerPosition(position.ledger, position.entry + 1))


# Managed-ledger statistics of a partition, and the subscription's state. Pure.

_READER = re.compile(r"(?P<prefix>.*\.)(?P<query>[^.]+)-reader-[0-9a-z]+", re.DOTALL)
"""How a reader's cursor is named: the prefix of its role, the query, and what the client adds. A query has no dot."""

_COMPACTION = "__compaction"
"""The cursor of the broker's own compaction: it keeps every ledger that is not compacted yet."""

Role = Literal["owner", "candidate"]
"""What a query is to a subscription: it reads it, or it begins and looks whether somebody else does."""


def reader_prefix(subscription: str, role: Role) -> str:
    """The prefix of the names of readers that mark a query in its role."""
    return f"{subscription}.{role}."


@dataclass(frozen=True, slots=True)
class LedgerInfo:
    """A ledger with entries 0 to `entries` - 1; `size` in bytes."""

    ledger_id: int
    entries: int
    size: int


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One topic partition at one moment.

    `last`: the newest entry (entry -1 of a ledger when there is none). `cursor`: the position that the subscription has
    acknowledged, None without a subscription. `ledger_created_at`: when the broker opened the newest ledger, in its
    words; while it is unchanged, the topic is the same one. `cursor_created_at`: the same for the cursor's own ledger
    and the subscription. `owners`: queries that read the subscription now. `candidates`: queries that wait to read it.
    `compacted`: the end of the compacted form; BEGINNING without one.
    """

    ledgers: tuple[LedgerInfo, ...]
    last: LedgerPosition
    cursor: LedgerPosition | None
    ledger_created_at: str = ""
    owners: frozenset[str] = frozenset()
    cursor_created_at: str = ""
    candidates: frozenset[str] = frozenset()
    compacted: LedgerPosition = BEGINNING

    @classmethod
    def from_stats(cls, stats: Mapping[str, Any], subscription: str) -> Self:
        """The state from the admin REST's internal statistics of a topic, seen from one subscription."""
        last = LedgerPosition.parse(stats["lastConfirmedEntry"])
        size = stats["currentLedgerSize"]
        ledgers = tuple(_ledger(row, last, size) for row in stats["ledgers"])
        cursor = stats["cursors"].get(subscription)
        acknowledged = None if cursor is None else LedgerPosition.parse(cursor["markDeletePosition"])
        owners, candidates = (_queries(stats["cursors"], reader_prefix(subscription, role)) for role in get_args(Role))
        opened = str(stats.get("lastLedgerCreatedTimestamp", ""))
        subscribed = "" if cursor is None else str(cursor.get("lastLedgerSwitchTimestamp", ""))
        compaction = stats["cursors"].get(_COMPACTION)
        compacted = BEGINNING if compaction is None else LedgerPosition.parse(compaction["markDeletePosition"])
        return cls(ledgers, last, acknowledged, opened, owners, subscribed, candidates, compacted)

    @property
    def first_ledger(self) -> int:
        """The oldest ledger that still exists; that of the newest entry when the list is empty."""
        return self.ledgers[0].ledger_id if self.ledgers else self.last.ledger

    def entries_between(self, start: LedgerPosition, end: LedgerPosition) -> int:
        """The number of stored entries after `start`, up to and including the whole entry `end`."""
        return sum(_overlap(ledger, start, end) for ledger in self.ledgers)

    def entry_counts_between(self, start: LedgerPosition, end: LedgerPosition) -> tuple[tuple[int, int], ...]:
        """(number, entries) of each ledger that a range touches."""
        touched = (ledger for ledger in self.ledgers if start.ledger <= ledger.ledger_id <= end.ledger)
        return tuple((ledger.ledger_id, ledger.entries) for ledger in touched)

    def has_entries_after(self, start: LedgerPosition) -> bool:
        """Whether there is an entry, or the rest of one, after `start`."""
        return self.entries_between(start, self.last) > 0

    def mean_entry_size(self) -> float:
        """The mean size of a stored entry in bytes; 0 when nothing is stored."""
        entries = sum(ledger.entries for ledger in self.ledgers)
        return sum(ledger.size for ledger in self.ledgers) / entries if entries else 0.0

    def ends_before(self, start: LedgerPosition) -> bool:
        """Whether the topic never had an entry at that position: the cluster was restored from older disks."""
        if start.entry < 0 or start.ledger < self.first_ledger:
            return start.ledger > max([self.last.ledger, *(ledger.ledger_id for ledger in self.ledgers)])
        entries = {ledger.ledger_id: ledger.entries for ledger in self.ledgers} or {
            self.last.ledger: self.last.entry + 1
        }
        return start.entry >= entries.get(start.ledger, 0)

    def cursor_delivers(self, start: LedgerPosition) -> bool:
        """Whether the subscription's cursor still covers everything after `start`."""
        return (
            self.cursor is not None
            and self.entries_between(start, self.cursor) == 0
            and (self.loss_after(start) is None)
        )

    def loss_after(self, start: LedgerPosition) -> str | None:
        """A description of the known loss of messages after `start`; None: no loss.

        The broker removes a ledger when every cursor has left it. Unread messages are lost with it when the
        subscription was removed, or when its cursor is behind an entry after `start`: TTL, a quota or an operator moved
        it, or the query was reset. Only the first position of a ledger proves nothing: the broker moves a cursor there
        by itself when it removes the previous ledger. See `SubscriptionProperties.acknowledged_after`.
        """
        if self.ends_before(start):
            return f"the topic has never had {start}, and ends at {self.last}"
        if not self.is_removed(start):
            return None
        if self.cursor is None:
            return f"its subscription was removed; the oldest ledger is {self.first_ledger}, not {start.ledger}"
        if self.cursor > start and self.cursor.entry >= 0:
            return f"the cursor stands at {self.cursor}, the query at {start}, and ledger {start.ledger} is removed"
        return None

    def is_removed(self, start: LedgerPosition) -> bool:
        """Whether the ledger of a position no longer exists."""
        return 0 <= start.ledger < self.first_ledger


def _queries(cursors: Iterable[str], prefix: str) -> frozenset[str]:
    found = (_READER.fullmatch(name) for name in cursors)
    return frozenset(name["query"] for name in found if name and name["prefix"] == prefix)


def _ledger(row: Mapping[str, Any], last: LedgerPosition, open_size: int) -> LedgerInfo:
    number, entries = row["ledgerId"], row["entries"]
    if entries == 0 and number == last.ledger:
        # The open ledger is listed with 0 entries until it is closed.
        return LedgerInfo(number, last.entry + 1, open_size)
    return LedgerInfo(number, entries, row["size"])


def _overlap(ledger: LedgerInfo, start: LedgerPosition, end: LedgerPosition) -> int:
    after = -1
    if ledger.ledger_id == start.ledger:
        # An entry of which only some messages are behind still counts as ahead.
        after = start.entry if start == LedgerPosition(start.ledger, start.entry) else start.entry - 1
    elif ledger.ledger_id < start.ledger:
        return 0
    upto = ledger.entries - 1
    if ledger.ledger_id == end.ledger:
        upto = min(upto, end.entry)
    elif ledger.ledger_id > end.ledger:
        return 0
    return max(0, upto - after)


_ID = "waybill-subscription-id"
_PLANNED = "waybill-planned-openings"
_ACKNOWLEDGED = "waybill-acknowledged-opening"
_STARTING = "waybill-starting-position"
MAX_PLANNED = 16


@dataclass(frozen=True, slots=True)
class SubscriptionProperties:
    """Our properties of a durable subscription; they end with it, with its topic and with the disks.

    `subscription_id`: random, set once. `planned`: the newest openings in which batches were planned, oldest first.
    `acknowledged`: the newest opening in which a batch was acknowledged. `starting`: "earliest"
    while the cursor is still to be set there. The *generation* of a
    position in an offset is the id and the opening in which it was planned.
    """

    subscription_id: str
    planned: tuple[str, ...] = ()
    acknowledged: str = ""
    starting: str = ""

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> Self | None:
        """From the broker's properties; None when none of them is ours."""
        if _ID not in properties:
            return None
        planned = tuple(filter(None, properties.get(_PLANNED, "").split(",")))
        acknowledged, starting = properties.get(_ACKNOWLEDGED, ""), properties.get(_STARTING, "")
        return cls(properties[_ID], planned, acknowledged, starting)

    def to_properties(self) -> dict[str, str]:
        return {
            _ID: self.subscription_id,
            _PLANNED: ",".join(self.planned),
            _ACKNOWLEDGED: self.acknowledged,
            _STARTING: self.starting,
        }

    def with_cursor_placed(self) -> Self:
        return replace(self, starting="")

    def with_planned(self, created: str) -> Self:
        return replace(self, planned=(*self.planned, created)[-MAX_PLANNED:]) if self._index(created) < 0 else self

    def with_acknowledged(self, created: str) -> Self:
        return replace(self, acknowledged=created)

    def generation(self, created: str = "") -> str:
        """The generation of a position planned in the opening `created`; without one, that of a cursor."""
        return f"{self.subscription_id}@{created}" if created else self.subscription_id

    def has_read(self, generation: str) -> bool:
        """Whether a position of that generation was read through this subscription, on these disks."""
        subscription_id, _, created = generation.partition("@")
        if subscription_id != self.subscription_id:
            return False
        # Only the newest openings are kept: of an older one it cannot be said that it was on other disks.
        forgotten = len(self.planned) == MAX_PLANNED and created < self.planned[0]
        return not created or forgotten or self._index(created) >= 0

    def acknowledged_after(self, generation: str) -> bool:
        """Whether batches were acknowledged in a later opening than that of the generation."""
        created = generation.partition("@")[2]
        return bool(created) and self._index(self.acknowledged) > self._index(created)

    def _index(self, created: str) -> int:
        return self.planned.index(created) if created in self.planned else -1


def ledger_created_in(generation: str) -> str:
    """The opening of a generation; "" without one."""
    return generation.partition("@")[2]
