"""Positions within one cluster, walks over the entries between them, and the offset that Spark keeps. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

WHOLE_ENTRY = 2**31 - 1
"""Batch index of a position that takes in its entry to the last message."""


class LedgerPosition(NamedTuple):
    """The last message taken in: everything up to it is behind, everything after it lies ahead.

    Positions order as the messages of one topic partition of **one** cluster do; in another cluster they mean nothing.
    Entry -1 is the place before the first entry of a ledger.
    """

    ledger: int
    entry: int
    batch: int = WHOLE_ENTRY

    def __str__(self) -> str:
        whole = self.batch == WHOLE_ENTRY
        return f"{self.ledger}:{self.entry}" if whole else f"{self.ledger}:{self.entry}:{self.batch}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """`ledger:entry` or `ledger:entry:batch` -> position; anything else is a ValueError."""
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
    """Where a query stands: one position for each topic partition, in one named cluster.

    `origin` is where the batch that ends here begins, for the partitions of which the offset before it says nothing:
    all of them after a change of cluster, and those that are met for the first time. A replay therefore reads the same
    range again.

    `generations`: topic partition -> which life of the subscription the position was read in, see
    `SubscriptionProperties`: a position of another life of the topic or of the disks is never taken for one of this.

    `query`: the id of the query, which its failover file knows too. `restarts`: how often reading went on at a cursor;
    without it a batch that is planned once more, because it was closed unread, would be the same text, and Spark would
    see no change.
    """

    cluster: str
    positions: Mapping[str, LedgerPosition]
    origin: Mapping[str, LedgerPosition] = field(default_factory=dict)
    generations: Mapping[str, str] = field(default_factory=dict)
    query: str = ""
    restarts: int = 0

    def to_json(self) -> dict[str, Any]:
        """The same offset as a dict with sorted keys: Spark compares offsets as text."""
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
        """The reverse of `to_json`; a document of another shape or version is a ValueError."""
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
    """The messages after `start` up to and with `end` of one topic partition."""

    topic: str
    start: LedgerPosition
    end: LedgerPosition


def ranges(start: Offset, end: Offset) -> Iterator[PartitionRange]:
    """What lies between two offsets, by topic partition, in the cluster of `end`.

    Neighbours in one cluster: from `start` to `end`. Where `end` has an origin, from there (see `Offset`).
    A partition of which neither says where it begins, begins at the beginning; one that `end` does not know any more is
    left out.
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
    """The places from `end` back to the one behind `after`, by (number, entries) of the ledgers in order."""
    for number, entries in reversed(ledgers):
        newest = min(entries - 1, end.entry) if number == end.ledger else entries - 1
        if number <= end.ledger:
            for entry in range(newest, -1, -1):
                if (number, entry) <= (after.ledger, after.entry):
                    return
                yield LedgerPosition(number, entry)


def next_entry(ledgers: Sequence[tuple[int, int]], position: LedgerPosition) -> LedgerPosition:
    """The entry that is stored after a place, by (number, entries) of the ledgers in order."""
    if position.entry + 1 < dict(ledgers).get(position.ledger, 0):
        return LedgerPosition(position.ledger, position.entry + 1)
    later = (LedgerPosition(number, 0) for number, entries in ledgers if number > position.ledger and entries)
    return next(later, LedgerPosition(position.ledger, position.entry + 1))
