"""Seq ranges and coverage of a device stream: what was received, declared lost, or is missing. Pure."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cloud_jobs.lake.values import encoded
from waybill.record import IntervalSet, Tombstone

# Record ids as seq ranges by epoch.


@dataclass(frozen=True, slots=True)
class SeqRanges:
    """The seqs of records by epoch of one device, in ascending order and without empty sets."""

    sets: tuple[tuple[int, IntervalSet], ...] = ()

    @classmethod
    def of(cls, sets: Mapping[int, IntervalSet]) -> SeqRanges:
        return cls(tuple(sorted((epoch, seqs) for epoch, seqs in sets.items() if seqs)))

    @classmethod
    def union(cls, parts: Iterable[SeqRanges]) -> SeqRanges:
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
        return sum(seqs.count for _, seqs in self.sets)

    def document(self) -> dict[str, list[list[int]]]:
        """The JSON document `{"<epoch>": [[first, last], ...]}`."""
        return {str(epoch): [list(bounds) for bounds in seqs.ranges] for epoch, seqs in self.sets}

    @classmethod
    def read(cls, document: Mapping[str, Iterable[tuple[int, int] | list[int]]]) -> SeqRanges:
        """The inverse of `document`. Raises ValueError."""
        return cls.of({int(epoch): IntervalSet(ranges) for epoch, ranges in document.items()})

    def text(self) -> str:
        """The document as it stands in a column of a table."""
        return json.dumps(self.document(), separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> SeqRanges:
        """The inverse of `text`. Raises ValueError."""
        return cls.read(json.loads(text or "{}"))


# Rows sorted by device stream. Pure, on Arrow.


def in_order(rows: pa.Table) -> pa.Table:
    """Sorts rows by tenant, device, epoch and seq."""
    seq = rows["seq"].to_numpy()
    stream = stream_codes(rows)
    # rows of the ingest are mostly sorted, and checking is much cheaper than sorting
    descends = (np.diff(stream) < 0) | ((np.diff(stream) == 0) & (np.diff(seq) < 0))
    return rows.take(pa.array(np.lexsort((seq, stream)))) if descends.any() else rows


def stream_codes(rows: pa.Table) -> NDArray[np.int64]:
    """A number for the device stream of each row, in the order of tenant, device and epoch."""
    (tenant, tenants), (device, devices) = text_ranks(rows["tenant"]), text_ranks(rows["device"])
    if tenants > 1:
        # renumbered, because three factors as large as the number of rows would exceed 64 bits
        _, device = np.unique(tenant * devices + device, return_inverse=True)
    epochs, epoch = np.unique(rows["epoch"].to_numpy(), return_inverse=True)
    codes: NDArray[np.int64] = device * max(len(epochs), 1) + epoch
    return codes


def text_ranks(column: pa.ChunkedArray) -> tuple[NDArray[np.int64], int]:
    """The rank of each text among the distinct texts in order, and a bound of the ranks."""
    texts = encoded(column)
    order = pc.sort_indices(texts.dictionary).to_numpy()
    ordered = texts.dictionary.take(pa.array(order))
    rank = np.empty(len(order), np.int64)
    # one text may stand twice in a dictionary
    is_new = pc.not_equal(ordered[1:], ordered[:-1]).to_numpy(zero_copy_only=False)
    rank[order] = np.cumsum(np.r_[False, is_new]) if len(order) else 0
    found: NDArray[np.int64] = rank[texts.indices.to_numpy()]
    return found, len(order)


class TenantDevice(NamedTuple):
    """A device of a tenant. Devices of two tenants may have the same name."""

    tenant: str
    device: str


class DeviceStream(NamedTuple):
    """All records that one device wrote with one buffer."""

    tenant: str
    device: str
    epoch: int

    @property
    def of_device(self) -> TenantDevice:
        return TenantDevice(self.tenant, self.device)


class Statement(NamedTuple):
    """The device states that no record with a seq above `head` has a device time before `stated_us`."""

    stated_us: int
    head: int


@dataclass(frozen=True, slots=True)
class Coverage:
    """The known seqs of one device stream. Joining is a union: any order, any number of times.

    `received`: in the records table. `tombstones`: disjoint ranges that the device declared lost. `head`: the highest
    seq that the device is known to have used. `stated_us`, `stated_head`: the latest statement, in microseconds since
    1970; 0: none. `complete_until_us`: the latest stated moment for which no seq up to the head was missing.
    """

    received: IntervalSet = field(default_factory=IntervalSet)
    tombstones: tuple[Tombstone, ...] = ()
    head: int = 0
    stated_us: int = 0
    stated_head: int = 0
    complete_until_us: int = 0

    def __or__(self, other: Coverage) -> Coverage:
        stated_us, stated_head = max((self.stated_us, self.stated_head), (other.stated_us, other.stated_head))
        return Coverage(
            self.received | other.received,
            _merged_tombstones(self.tombstones, other.tombstones),
            max(self.head, other.head),
            stated_us,
            stated_head,
            max(self.complete_until_us, other.complete_until_us),
        )

    @property
    def declared_lost(self) -> IntervalSet:
        """Seqs that were declared lost and never received."""
        return _seqs_of(self.tombstones) - self.received

    @property
    def missing(self) -> IntervalSet:
        """Seqs that were neither received nor declared lost."""
        return self.received.gaps(1, self.head) - self.declared_lost

    @property
    def covered_through(self) -> int:
        """The highest seq up to which nothing is missing; 0 if the first one is."""
        known = self.received | _seqs_of(self.tombstones) if self.tombstones else self.received
        first, last = known.ranges[0] if known else (0, 0)
        return last if first == 1 else 0

    def completed(self, statements: Iterable[Statement] = ()) -> Coverage:
        """The coverage with a later `complete_until_us`, if its own statement or one of `statements` allows it."""
        known_us = self.complete_until_us
        later = [one for one in ((self.stated_us, self.stated_head), *statements) if one[0] > known_us]
        if not later:
            return self
        through = self.covered_through
        until_us = max((stated_us for stated_us, head in later if head <= through), default=known_us)
        return self if until_us == known_us else replace(self, complete_until_us=until_us)


def _merged_tombstones(known: tuple[Tombstone, ...], more: tuple[Tombstone, ...]) -> tuple[Tombstone, ...]:
    """The union; if a seq has two reasons, the known one stays."""
    taken, new = _seqs_of(known), _seqs_of(more)
    # a header may have thousands of disjoint ones, which need no comparison with each other
    apart = new.count == sum(last - first + 1 for first, last, _ in more)
    added: list[Tombstone] = []
    for tombstone in more:
        fresh = [Tombstone(*bounds, tombstone.reason) for bounds in _outside(tombstone, taken)]
        added.extend(fresh)
        if not apart:
            taken |= _seqs_of(fresh)
    return tuple(sorted((*known, *added))) if added else known


def _seqs_of(tombstones: Iterable[Tombstone]) -> IntervalSet:
    return IntervalSet((first, last) for first, last, _ in tombstones)


def _outside(tombstone: Tombstone, taken: IntervalSet) -> tuple[tuple[int, int], ...]:
    near = bisect_left(taken.ranges, tombstone.first, key=lambda bounds: bounds[1])
    beyond = bisect_right(taken.ranges, tombstone.last, key=lambda bounds: bounds[0])
    return (IntervalSet([tombstone[:2]]) - IntervalSet(taken.ranges[near:beyond])).ranges
