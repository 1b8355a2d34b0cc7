"""What a device used in one hour and zone, and which of several computations of it is meant."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from cloud_jobs.billing.errors import ContradictoryUsage
from cloud_jobs.billing.meters import Meter
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.seq_ranges import SeqRanges

UsageKey = tuple[str, str, datetime, str]
MAX_SEGMENT: Final = timedelta(days=1)
"""A row is of the hour in which its segments end; the fix where one begins is at most this long before the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRow:
    """One computation of one device's use of one zone in one hour of UTC: its quarters together.

    `zone`: "" is outside all zones. `seq_ranges`: the records it was computed from. A higher `commit_number` replaces a
    lower one of the same key, also with zeros; of a later commit `computed_at` is never earlier.
    """

    tenant: str
    device: str
    hour: datetime
    zone: str
    distance_mm: int = 0
    duration_ms: int = 0
    entries: int = 0
    seq_ranges: SeqRanges = field(default_factory=SeqRanges)
    computed_at: datetime
    commit_number: int = 1

    def __post_init__(self) -> None:
        if min(self.distance_mm, self.duration_ms, self.entries) < 0:
            raise ValueError(f"usage of {self.device} at {self.hour.isoformat()} is negative")

    @property
    def key(self) -> UsageKey:
        """What the row is about."""
        return self.tenant, self.device, self.hour, self.zone

    @property
    def of_device(self) -> TenantDevice:
        """Whose use it is."""
        return TenantDevice(self.tenant, self.device)

    def quantity(self, meter: Meter) -> int:
        """What the meter counted, in its base unit."""
        match meter:
            case Meter.DISTANCE:
                return self.distance_mm
            case Meter.DURATION:
                return self.duration_ms
            case Meter.ENTRY:
                return self.entries
            case _:
                return 0


class ErasedPast(NamedTuple):
    """Positions of a device with a time before `before` are erased. `kept`: records of it that the lake has, at least
    all from that moment to the end of the last hour for which a segment may have begun before it."""

    before: datetime
    kept: SeqRanges = SeqRanges()

    def part_of(self, row: UsageRow) -> SeqRanges:
        """The records of a row that are erased."""
        return row.seq_ranges - self.kept if row.hour < self.before + MAX_SEGMENT else SeqRanges()


def known_at(rows: Iterable[UsageRow], as_of: datetime) -> list[UsageRow]:
    """For each key the row committed last, of those computed not later than `as_of`, in the order of the keys.

    Raises ContradictoryUsage when two different rows of a key are of one commit.
    """
    latest: dict[UsageKey, UsageRow] = {}
    for row in rows:
        if row.computed_at > as_of:
            continue
        kept = latest.get(row.key)
        if kept is None or row.commit_number > kept.commit_number:
            latest[row.key] = row
        # the same row twice is no contradiction
        elif row.commit_number == kept.commit_number and row != kept:
            raise ContradictoryUsage(*row.key)
    return [latest[key] for key in sorted(latest)]
