"""What a segment does while fences come into force and go out of it, in whole numbers: `exact` with a clock."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from itertools import pairwise
from zoneinfo import ZoneInfo

from tests.geo.spatial.exact import ExactFence, merged, place_at

QUARTER_MS = 900_000
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


@dataclass(frozen=True)
class Windows:
    """Weekly windows as they are published: (days, from, until), whole quarters of an hour of a local clock."""

    timezone: str
    windows: tuple[tuple[tuple[str, ...], str, str], ...]

    def open_at(self, t_ms: int) -> bool:
        local = datetime.fromtimestamp(t_ms // 1000, UTC).astimezone(ZoneInfo(self.timezone))
        minute, today, yesterday = local.hour * 60 + local.minute, DAYS[local.weekday()], DAYS[local.weekday() - 1]
        for days, start, until in self.windows:
            begin, end = _minute(start), _minute(until)
            if begin < end:
                held = today in days and begin <= minute < end
            else:
                held = (today in days and begin <= minute) or (yesterday in days and minute < end)
            if held:
                return True
        return False


def _minute(clock: str) -> int:
    return int(clock[:2]) * 60 + int(clock[3:])


@dataclass(frozen=True)
class ExactVersion:
    """One version of a fence: from a date (None: always), until another, in its windows."""

    name: str
    shape: ExactFence
    priority: int = 0
    begin_ms: int | None = None
    until_ms: int | None = None
    windows: Windows | None = None


@dataclass(frozen=True)
class Stay:
    entries: int
    exits: int
    share: Fraction
    metres: float


class ExactHours:
    """Versions of fences through the hours from one time to another.

    Asked for one name, they are a fence of its own; asked for all, zones of which the first in rank wins.
    """

    def __init__(self, versions: Sequence[ExactVersion], low_ms: int, high_ms: int) -> None:
        ranked = sorted(versions, key=lambda one: (-one.priority, one.name))
        self._forces = [(one, _force(one, versions, low_ms, high_ms)) for one in ranked]

    def of(self, name: str) -> ExactHours:
        other = ExactHours([], 0, 0)
        other._forces = [(one, force) for one, force in self._forces if one.name == name]
        return other

    def switches(self, t_ms: int, end_ms: int) -> list[int]:
        """When something comes into force, or goes out of it, between two fixes."""
        return sorted({at for _, force in self._forces for at in force if t_ms < at < end_ms})

    def along(
        self, ends: tuple[tuple[float, float], tuple[float, float]], times: tuple[int, int]
    ) -> tuple[dict[str, Stay], float]:
        """Stays by name, and how far a border is from the next border or switch, in degrees, at the least.

        A change at a switch is no entry. Where a border is at the very place of a switch, the distance is next to none.
        """
        some = self._forces[0][0].shape
        start, end, turned = some.placed(*ends)
        shapes = [one.shape.everywhere() if turned else one.shape for one, _ in self._forces]
        borders = {at for shape in shapes for at in shape.cuts(start, end)}
        elapsed = times[1] - times[0]
        switches = {Fraction(at - times[0], elapsed) for at in self.switches(*times)}
        cuts = sorted({*borders, *switches, Fraction(0), Fraction(1)})
        parts = list(pairwise(cuts))
        moments = [Fraction(0), *((low + high) / 2 for low, high in parts), Fraction(1)]
        states = [
            self._winner(shapes, place_at(start, end, at), times[0] + at * elapsed, last=at == 1) for at in moments
        ]
        length = some.degrees(start, end)
        near = [high - low for low, high in parts if low in borders or high in borders]
        finest = 1e-30 if borders & switches else float(min(near)) * length if near else 0.0
        names = {one.name for one, _ in self._forces}
        return {name: self._stay(name, (start, end), cuts, states, switches - borders) for name in names}, finest

    def crossed(
        self, ends: tuple[tuple[float, float], tuple[float, float]], times: tuple[int, int]
    ) -> tuple[dict[str, tuple[int, int]], bool]:
        """(forward, backward) crossings by name of a gate along the first edge of the version in force at that moment.

        Not sure if a crossing is next to a switch.
        """
        found, sure = {one.name: (0, 0) for one, _ in self._forces}, True
        for one, force in self._forces:
            for edge, is_forward, at in one.shape.gate_crossings(*ends):
                t_ms = times[0] + at * (times[1] - times[0])
                sure &= edge != 0 or all(abs(t_ms - switch) > Fraction(1, 1000) for switch in force)
                if edge == 0 and bisect_right(force, t_ms) % 2:
                    forward, back = found[one.name]
                    found[one.name] = (forward + is_forward, back + (not is_forward))
        return found, sure

    def _winner(
        self, shapes: list[ExactFence], place: tuple[int, int, int], t_ms: Fraction, *, last: bool
    ) -> str | None:
        for shape, (one, force) in zip(shapes, self._forces, strict=True):
            # at the end of a segment its own time counts, not the one that begins
            past = sum(at < t_ms for at in force) if last else bisect_right(force, t_ms)
            if past % 2 and shape.holds(place):
                return one.name
        return None

    def _stay(
        self,
        name: str,
        ends: tuple[tuple[int, int], tuple[int, int]],
        cuts: list[Fraction],
        states: list[str | None],
        switches: set[Fraction],
    ) -> Stay:
        parts, held = list(pairwise(cuts)), [state == name for state in states]
        changes = [
            (before, after) for at, (before, after) in zip(cuts, pairwise(held), strict=True) if at not in switches
        ]
        return Stay(
            entries=sum(after and not before for before, after in changes),
            exits=sum(before and not after for before, after in changes),
            share=sum(
                (high - low for (low, high), inside in zip(parts, held[1:-1], strict=True) if inside), Fraction()
            ),
            metres=sum(self._forces[0][0].shape.metres(*ends, run) for run in merged(parts, held[1:-1])),
        )


def _force(version: ExactVersion, versions: Sequence[ExactVersion], low_ms: int, high_ms: int) -> list[int]:
    """The times at which a version comes into force and goes out of it, in turn, from before `low_ms` on."""
    first, last = low_ms - low_ms % QUARTER_MS - QUARTER_MS, high_ms + 2 * QUARTER_MS
    looks = set(range(first, last, QUARTER_MS)) if version.windows else {first}
    dates = [
        at for one in versions if one.name == version.name for at in (one.begin_ms, one.until_ms) if at is not None
    ]
    looks |= {at for at in dates if first < at < last}
    found: list[int] = []
    for at in sorted(looks):
        if _stands(version, versions, at) != bool(len(found) % 2):
            found.append(at)
    return found


def _stands(version: ExactVersion, versions: Sequence[ExactVersion], t_ms: int) -> bool:
    begun = [one for one in versions if one.name == version.name and (one.begin_ms is None or one.begin_ms <= t_ms)]
    latest = max(begun, key=lambda one: -(1 << 62) if one.begin_ms is None else one.begin_ms, default=None)
    return (
        latest is version
        and (version.until_ms is None or t_ms < version.until_ms)
        and (version.windows is None or version.windows.open_at(t_ms))
    )
