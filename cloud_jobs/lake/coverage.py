"""What the centre has of each device stream, and whether that is everything. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from waybill.record import IntervalSet, Tombstone


class TenantDevice(NamedTuple):
    """Which device: tenants name theirs as they like, so two may have one of the same name."""

    tenant: str
    device: str


class DeviceStream(NamedTuple):
    """All records that one device made with one buffer: their record ids without the seq."""

    tenant: str
    device: str
    epoch: int

    @property
    def of_device(self) -> TenantDevice:
        """Which device made it."""
        return TenantDevice(self.tenant, self.device)


class Statement(NamedTuple):
    """A device's word: no record of a stream with a seq above `head` has a device time before `stated_us`."""

    stated_us: int
    head: int


@dataclass(frozen=True, slots=True)
class Coverage:
    """The seqs that are known of one device stream.

    `received`: in the records table. `tombstones`: apart from each other. `head`: the highest seq that the device is
    known to have given. `stated_us`, `stated_head`: of the latest statement of the device, that no record above that
    head has a device time before that moment (microseconds since 1970; 0: it never made one). `complete_until_us`: the
    latest such moment for which nothing up to the head was missing. Joining is a union: any order, any number of times.
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
        """Declared lost, and never received."""
        return _seqs_of(self.tombstones) - self.received

    @property
    def missing(self) -> IntervalSet:
        """Neither received nor declared: still on the device, on the way, or lost without a word."""
        return self.received.gaps(1, self.head) - self.declared_lost

    @property
    def covered_through(self) -> int:
        """The highest seq up to which nothing is missing, whatever the head is; 0 if the first one is."""
        known = self.received | _seqs_of(self.tombstones) if self.tombstones else self.received
        first, last = known.ranges[0] if known else (0, 0)
        return last if first == 1 else 0

    def completed(self, statements: Iterable[Statement] = ()) -> Coverage:
        """With the latest moment up to which it is complete by its own statement, or by one of others."""
        known_us = self.complete_until_us
        later = [one for one in ((self.stated_us, self.stated_head), *statements) if one[0] > known_us]
        if not later:
            return self
        through = self.covered_through
        until_us = max((stated_us for stated_us, head in later if head <= through), default=known_us)
        return self if until_us == known_us else replace(self, complete_until_us=until_us)


def _merged_tombstones(known: tuple[Tombstone, ...], more: tuple[Tombstone, ...]) -> tuple[Tombstone, ...]:
    """The union; where two reasons are given for one seq, the first one stays."""
    taken, new = _seqs_of(known), _seqs_of(more)
    # one header may have thousands, which are apart: what is taken then needs no look at those before
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
    """The ranges of a tombstone that are not taken."""
    near = bisect_left(taken.ranges, tombstone.first, key=lambda bounds: bounds[1])
    beyond = bisect_right(taken.ranges, tombstone.last, key=lambda bounds: bounds[0])
    return (IntervalSet([tombstone[:2]]) - IntervalSet(taken.ranges[near:beyond])).ranges
