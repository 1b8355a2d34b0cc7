"""Candidates for encounters: a grid hash over slices of time finds what may come near each other.

Positions are converted to earth-centred metres, so neither the antimeridian nor a pole is special.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from geo.spatial.clip import Segments
from geo.spatial.ragged import Bools, Floats, Ints, blocks, expand, run_starts

MAX_PAIRS_AT_ONCE: Final = 2_000_000
MAX_PARTS_AT_ONCE: Final = 250_000
MAX_CELLS_PER_PART: Final = 64
"""A part whose box reaches more cells, such as a jump across the world, is searched in larger cells."""
_MIN_SLICE_MS: Final = 100.0
_EQUATOR_M: Final = 6_378_137.0
_FLATTER: Final = 1.0 - 0.0066943799901413165  # 1 - e² of WGS84
_MIXERS: Final = np.array([73_856_093, 19_349_663, 83_492_791, 1_000_003], dtype=np.int64)

Corners: TypeAlias = NDArray[np.float64]
T = TypeVar("T", np.int64, np.float64)


def earth_centred(lon: Floats, lat: Floats) -> Corners:
    """Positions on the WGS84 ellipsoid as columns (3, n) of x, y, z in metres."""
    phi, lam = np.radians(lat), np.radians(lon)
    sine, cosine = np.sin(phi), np.cos(phi)
    radius = _EQUATOR_M / np.sqrt(1.0 - (1.0 - _FLATTER) * sine * sine)
    flat = radius * cosine
    return np.stack([flat * np.cos(lam), flat * np.sin(lam), radius * _FLATTER * sine])


def bulge_m(segments: Segments, segment: Ints, share: Floats) -> Floats:
    """How far parts of segments, `share` of their time, bend away from their chords at most.

    An eighth of the square of the time times the greatest curvature of the way: near a pole a turn is short.
    """
    east, north = (turn[segment] * share for turn in turns(segments))
    bent = np.cos(np.radians(flattest(segments)))[segment] * east * east + 2.0 * east * north + north * north
    return np.asarray(1.02 * _EQUATOR_M / 8 * bent)


def turns(segments: Segments) -> tuple[Floats, Floats]:
    """How far segments go to the east or west, and to the north or south, in radians."""
    return np.radians(np.abs(segments.qx - segments.px)), np.radians(np.abs(segments.qy - segments.py))


def flattest(segments: Segments) -> Floats:
    """The absolute latitude of each segment that is nearest to the equator."""
    least = np.minimum(np.abs(segments.py), np.abs(segments.qy))
    return np.where(segments.py * segments.qy < 0, 0.0, least)


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Pairs of parts of two devices, device[one] < device[other], that overlap in time: from `start_ms` to `end_ms`."""

    one: Ints
    other: Ints
    start_ms: Floats
    end_ms: Floats


def candidates(segments: Segments, device: Ints, distance_m: float, apart: Ints | None = None) -> Iterator[Candidates]:
    """Pairs of segments that may come within `distance_m` of each other, each for the time of one slice.

    Complete: no pair that does is missing. Each pair of parts comes once. Chunks hold about `MAX_PAIRS_AT_ONCE` pairs.
    With `apart`, two segments with the same number above 0 are no pair, and cost nothing.
    """
    if len(segments) < 2:
        return
    slice_ms = max(_MIN_SLICE_MS, 2.0 * float((segments.end_ms - segments.start_ms).mean()))
    first = np.floor(segments.start_ms / slice_ms).astype(np.int64)
    final = np.floor(segments.end_ms / slice_ms).astype(np.int64)
    # the end of a segment is the start of the next one: a part of no length adds nothing
    final = np.maximum(first, np.where(final * slice_ms == segments.end_ms, final - 1, final))
    order = np.argsort(first, kind="stable")
    for chosen in _slice_blocks(first[order], final[order]):
        low, high, rows = chosen
        row = order[rows]
        segment, number = expand(
            np.maximum(first[row], low), np.minimum(final[row], high - 1) - np.maximum(first[row], low) + 1
        )
        segment = row[segment]
        start = np.maximum(segments.start_ms[segment], number * slice_ms)
        end = np.minimum(segments.end_ms[segment], (number + 1) * slice_ms)
        boxes = _boxes(segments, (segment, start, end), distance_m)
        alike = None if apart is None else apart[segment]
        yield from _pairs(_Parts(segment, number, start, end, device[segment], alike, *boxes), distance_m)


def _slice_blocks(first: Ints, final: Ints) -> Iterator[tuple[int, int, Ints]]:
    """Blocks (from slice, to slice, rows that reach into them) with about `MAX_PARTS_AT_ONCE` parts each."""
    begins, ends = np.unique(first), int(final.max()) + 1
    grid = (
        np.arange(int(begins[0]), ends)
        if ends - begins[0] < 4 * len(first) + 1000
        else np.unique(np.concatenate([first, final]))
    )
    load = np.cumsum(np.searchsorted(first, grid, side="right") - np.searchsorted(np.sort(final), grid, side="left"))
    block = load // MAX_PARTS_AT_ONCE
    edges = np.append(grid[run_starts(block)], ends)
    longest = np.maximum.accumulate(final)
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        begin, stop = int(np.searchsorted(longest, low, side="left")), int(np.searchsorted(first, high, side="left"))
        rows = np.arange(begin, stop)
        rows = rows[final[rows] >= low]
        if len(rows) > 1:
            yield low, high, rows


@dataclass(frozen=True, slots=True, eq=False)
class _Parts:
    """Parts of segments in one slice of time: `start_ms .. end_ms` of `segment`, in `slice_number`.

    `owner`: the device of each. `apart`: that of its segment, if it is asked for. `low`, `high`: its box, (3, n).
    """

    segment: Ints
    slice_number: Ints
    start_ms: Floats
    end_ms: Floats
    owner: Ints
    apart: Ints | None
    low: Corners
    high: Corners


def _pairs(parts: _Parts, distance_m: float) -> Iterator[Candidates]:
    low, high = parts.low, parts.high
    rows: Ints | None = None  # all
    done = np.zeros(len(parts.segment), dtype=np.bool_)
    cell_m = max(2.0 * distance_m, 2.0 * float(np.median(high - low)), 1.0)
    while True:
        low_cell = np.floor(low / cell_m).astype(np.int64)
        span = np.floor(_of(high, rows) / cell_m).astype(np.int64) - _of(low_cell, rows) + 1
        # As doubles: the product of three spans may be more than 64 bits hold.
        large = span.astype(np.float64).prod(axis=0) > MAX_CELLS_PER_PART
        yield from _pairs_in_cells(parts, rows, (low_cell, np.where(large, 0, span)), done)
        if not large.any():
            return
        # parts that reach too many cells wait for larger ones, and so do those that they may meet
        rows = np.arange(len(done)) if rows is None else rows
        done[rows[~large]] = True
        waiting = rows[large]
        rows = rows[np.isin(parts.slice_number[rows], parts.slice_number[waiting])]
        cell_m = max(4.0 * cell_m, 0.5 * float(np.median((high - low)[:, waiting].max(axis=0))))


def _of(columns: NDArray[T], rows: Ints | None) -> NDArray[T]:
    return columns if rows is None else columns[:, rows]


def _pairs_in_cells(parts: _Parts, rows: Ints | None, cells: tuple[Ints, Ints], done: Bools) -> Iterator[Candidates]:
    """Pairs of rows whose boxes share a cell. Pairs of two `done` rows were found in smaller cells.

    `cells`: the lowest cell of each part, and how many each row reaches.
    """
    low, high, (low_cell, span) = parts.low, parts.high, cells
    row, cell = _cells(_of(low_cell, rows), span)
    row = row if rows is None else rows[row]
    key = (cell * _MIXERS[:3, None]).sum(axis=0) ^ (parts.slice_number[row] * _MIXERS[3])
    alike = done.astype(np.int64) if done.any() else parts.apart
    group = None if alike is None else alike[row]
    order = np.argsort(key, kind="stable") if group is None else np.lexsort((group, key))
    row, key, cell = row[order], key[order], cell[:, order]
    following, after = _partners(key, None if group is None else group[order])
    for block in blocks(after, MAX_PAIRS_AT_ONCE):
        place, other = expand(following[block], after[block])
        place += block.start
        one, two = row[place], row[other]
        # Different cells may have the same key, so each pair is checked.
        fit = _may_meet(parts, one, two)
        # the pair is reported by the lowest of the cells that both boxes share
        for axis in range(3):
            home = np.maximum(low_cell[axis, one], low_cell[axis, two])
            fit &= (cell[axis, place] == home) & (cell[axis, other] == home)
            fit &= (low[axis, one] <= high[axis, two]) & (low[axis, two] <= high[axis, one])
        yield _ordered(parts, one[fit], two[fit])


def _may_meet(parts: _Parts, one: Ints, two: Ints) -> Bools:
    slice_number, owner, apart = parts.slice_number, parts.owner, parts.apart
    fit = (slice_number[one] == slice_number[two]) & (owner[one] != owner[two])
    if apart is not None:
        fit &= (apart[one] == 0) | (apart[one] != apart[two])
    return np.asarray(fit, dtype=np.bool_)


def _partners(key: Ints, group: Ints | None) -> tuple[Ints, Ints]:
    """For each row of sorted (key, group): its first partner, and how many follow, to the end of its key."""
    following = np.arange(len(key)) + 1
    ends = _ends(run_starts(key))
    if group is not None:
        following = np.where(group > 0, _ends(run_starts(key, group)), following)
    return following, ends - following


def _ends(starts: Bools) -> Ints:
    """For each row: where its run ends."""
    first = np.flatnonzero(starts)
    last = np.append(first[1:], len(starts))
    return np.repeat(last, last - first)


def _boxes(segments: Segments, parts: tuple[Ints, Floats, Floats], distance_m: float) -> tuple[Corners, Corners]:
    """Boxes of parts (segment, from, to), widened by half the distance and by the bulge of a long part."""
    segment, start, end = parts
    length = (segments.end_ms - segments.start_ms)[segment]
    begin = segments.start_ms[segment]
    corners = [earth_centred(*segments.at(segment, (time - begin) / length)) for time in (start, end)]
    margin = distance_m / 2 + bulge_m(segments, segment, (end - start) / length) + 1.0
    return np.minimum(*corners) - margin, np.maximum(*corners) + margin


def _cells(low_cell: Ints, span: Ints) -> tuple[Ints, Ints]:
    """Every cell that each box reaches: (the box of each, columns (3, n) of cell numbers)."""
    row, rest = expand(np.zeros(span.shape[1], dtype=np.int64), span.prod(axis=0))
    x = rest % span[0, row]
    rest //= span[0, row]
    y, z = rest % span[1, row], rest // span[1, row]
    return row, low_cell[:, row] + np.stack([x, y, z])


def _ordered(parts: _Parts, one: Ints, two: Ints) -> Candidates:
    swap = parts.owner[one] > parts.owner[two]
    one, two = np.where(swap, two, one), np.where(swap, one, two)
    start = np.maximum(parts.start_ms[one], parts.start_ms[two])
    end = np.minimum(parts.end_ms[one], parts.end_ms[two])
    keep = end > start
    return Candidates(parts.segment[one[keep]], parts.segment[two[keep]], start[keep], end[keep])
