"""The versions of one thing in the order of their beginnings, and the publications of it that cannot be used."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Generic, NamedTuple, TypeVar

from geo.reference.in_force import RefusedVersion

Facts = TypeVar("Facts")
EVER: Final = (1 << 63) - 1
"""The end (µs) of what has none."""
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class ContractVersion(NamedTuple, Generic[Facts]):
    """One version: what is known of it, its text, the publication that it is of, and from when until when (µs since
    1970, excluded) it is in force, of the time that was asked for."""

    begin_us: int
    end_us: int
    facts: Facts
    body: str
    publication_id: str


class UnusableVersion(NamedTuple):
    """A publication that cannot be used, and what of its text could be read. `begin_us` None: no beginning could."""

    begin_us: int | None
    refused: RefusedVersion
    body: dict[str, Any]


@dataclass(slots=True)
class ContractVersions(Generic[Facts]):
    """The versions of one id. `begins`, `ends`, `facts`, `bodies`, `publication_ids` are parallel, in order.

    `ends`: what a version says itself of its end (EVER: nothing); the next version ends it, too.
    """

    begins: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    facts: list[Facts] = field(default_factory=list)
    bodies: list[str] = field(default_factory=list)
    publication_ids: list[str] = field(default_factory=list)
    refusals: list[UnusableVersion] = field(default_factory=list)

    def add(self, begin_us: int, facts: Facts, body: str, publication_id: str, end_us: int = EVER) -> None:
        """The next version."""
        assert not self.begins or self.begins[-1] < begin_us
        assert begin_us < end_us
        self.begins.append(begin_us)
        self.ends.append(end_us)
        self.facts.append(facts)
        self.bodies.append(body)
        self.publication_ids.append(publication_id)

    def within(self, start_us: int, end_us: int) -> Iterator[ContractVersion[Facts]]:
        """The versions in force in a time, one after the other, clipped to it; after an end there may be a hole."""
        first = max(0, bisect_right(self.begins, start_us) - 1)
        for at in range(first, bisect_left(self.begins, end_us)):
            following = self.begins[at + 1] if at + 1 < len(self.begins) else EVER
            begin, end = max(start_us, self.begins[at]), min(end_us, following, self.ends[at])
            if begin < end:
                yield ContractVersion(begin, end, self.facts[at], self.bodies[at], self.publication_ids[at])

    def at(self, moment_us: int) -> ContractVersion[Facts] | None:
        """The version in force at a moment."""
        return next(self.within(moment_us, moment_us + 1), None)

    def times_within(self, start_us: int, end_us: int) -> tuple[tuple[int, int], ...]:
        """From when until when any version is in force, of a time, in order and apart."""
        found = list[tuple[int, int]]()
        for one in self.within(start_us, end_us):
            joins = found and found[-1][1] == one.begin_us
            found.append((found.pop()[0] if joins else one.begin_us, one.end_us))
        return tuple(found)

    def refused_within(self, start_us: int, end_us: int) -> Iterator[UnusableVersion]:
        """The publications that would be in force in a time if they could be used; without a beginning: always."""
        for refusal in self.refusals:
            if refusal.begin_us is None or (refusal.begin_us < end_us and start_us < self._end_of(refusal.begin_us)):
                yield refusal

    def _end_of(self, begin_us: int) -> int:
        later = [*self.begins[bisect_right(self.begins, begin_us) :][:1]]
        later += [one.begin_us for one in self.refusals if one.begin_us is not None and one.begin_us > begin_us]
        return min(later, default=EVER)


def micros(moment: datetime) -> int:
    """A moment as µs since 1970."""
    return (moment - EPOCH) // timedelta(microseconds=1)


def moment_of(us: int) -> datetime:
    """µs since 1970 as a moment in UTC."""
    return EPOCH + timedelta(microseconds=us)
