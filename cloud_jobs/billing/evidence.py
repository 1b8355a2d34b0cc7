"""The names of the records that a number was computed from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from telemetry import IntervalSet


@dataclass(frozen=True, slots=True)
class Evidence:
    """For each epoch of one device, ascending, the sequence numbers of the records. Never an empty set inside."""

    sets: tuple[tuple[int, IntervalSet], ...] = ()

    @classmethod
    def of(cls, sets: Mapping[int, IntervalSet]) -> Evidence:
        """Evidence from the sets of the epochs."""
        return cls(tuple(sorted((epoch, names) for epoch, names in sets.items() if names)))

    @classmethod
    def union(cls, parts: Iterable[Evidence]) -> Evidence:
        """Everything in any of the parts."""
        ranges: dict[int, list[tuple[int, int]]] = {}
        for part in parts:
            for epoch, names in part.sets:
                ranges.setdefault(epoch, []).extend(names.ranges)
        return cls.of({epoch: IntervalSet(found) for epoch, found in ranges.items()})

    def __sub__(self, other: Evidence) -> Evidence:
        others = dict(other.sets)
        return Evidence.of({epoch: names - others.get(epoch, IntervalSet()) for epoch, names in self.sets})

    def __iter__(self) -> Iterator[tuple[int, IntervalSet]]:
        return iter(self.sets)

    def __bool__(self) -> bool:
        return bool(self.sets)

    @property
    def count(self) -> int:
        """How many records."""
        return sum(names.count for _, names in self.sets)

    def document(self) -> dict[str, list[list[int]]]:
        """As JSON has it: `{"<epoch>": [[first, last], ...]}`."""
        return {str(epoch): [list(bounds) for bounds in names.ranges] for epoch, names in self.sets}

    @classmethod
    def read(cls, document: Mapping[str, Iterable[tuple[int, int] | list[int]]]) -> Evidence:
        """The inverse of `document`. Raises ValueError."""
        return cls.of({int(epoch): IntervalSet(ranges) for epoch, ranges in document.items()})

    @classmethod
    def parse(cls, text: str) -> Evidence:
        """Evidence from its JSON text. Raises ValueError."""
        return cls.read(json.loads(text or "{}"))
