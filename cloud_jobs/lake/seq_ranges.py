"""The ids of the records that a number was computed from: seq ranges by epoch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from waybill.record import IntervalSet


@dataclass(frozen=True, slots=True)
class SeqRanges:
    """For each epoch of one device, ascending, the sequence numbers of the records. Never an empty set inside."""

    sets: tuple[tuple[int, IntervalSet], ...] = ()

    @classmethod
    def of(cls, sets: Mapping[int, IntervalSet]) -> SeqRanges:
        """Seq ranges from the sets of the epochs."""
        return cls(tuple(sorted((epoch, seqs) for epoch, seqs in sets.items() if seqs)))

    @classmethod
    def union(cls, parts: Iterable[SeqRanges]) -> SeqRanges:
        """Everything in any of the parts."""
        ranges: dict[int, list[tuple[int, int]]] = {}
        for part in parts:
            for epoch, seqs in part.sets:
                ranges.setdefault(epoch, []).extend(seqs.ranges)
        return cls.of({epoch: IntervalSet(found) for epoch, found in ranges.items()})

    def __sub__(self, other: SeqRanges) -> SeqRanges:
        others = dict(other.sets)
        return SeqRanges.of({epoch: seqs - others.get(epoch, IntervalSet()) for epoch, seqs in self.sets})

    def __iter__(self) -> Iterator[tuple[int, IntervalSet]]:
        return iter(self.sets)

    def __bool__(self) -> bool:
        return bool(self.sets)

    @property
    def count(self) -> int:
        """How many records."""
        return sum(seqs.count for _, seqs in self.sets)

    def document(self) -> dict[str, list[list[int]]]:
        """As JSON has it: `{"<epoch>": [[first, last], ...]}`."""
        return {str(epoch): [list(bounds) for bounds in seqs.ranges] for epoch, seqs in self.sets}

    @classmethod
    def read(cls, document: Mapping[str, Iterable[tuple[int, int] | list[int]]]) -> SeqRanges:
        """The inverse of `document`. Raises ValueError."""
        return cls.of({int(epoch): IntervalSet(ranges) for epoch, ranges in document.items()})

    def text(self) -> str:
        """As a column of a table has it: `document`, without spaces."""
        return json.dumps(self.document(), separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> SeqRanges:
        """The inverse of `text`. Raises ValueError."""
        return cls.read(json.loads(text or "{}"))
