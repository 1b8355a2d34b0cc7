"""Time slices of tracks, which devices meet in them, and which stand in a crowd. Pure.

Ten thousand vehicles in one yard are fifty million pairs, and nobody reads them. So a device that has more than a given
number of devices around it is in a *crowd* for that minute. Two devices that are both in a crowd have no
encounter as a pair; each of them has one with `CROWD`: as many rows as devices, and none is left out.

Space is cut into cubes with an edge of the distance at which two part, time into minutes. Around a device are, in a
minute, all devices whose ways come through a cube that its own way comes through, or through one beside it. So a device
in no crowd never has more than the limit, itself included, within that distance in that minute. That depends on where
all devices of its tenant were in the minute, and on nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cloud_jobs.lake.schemas import FIX
from geo.spatial import Encounters, Fixes, TrackSettings, build_tracks, valid_positions
from geo.spatial.clip import Segments, segments_of
from geo.spatial.encounters import join_encounters, meetings
from geo.spatial.nearby import Candidates, Corners, bulge_m, candidates, earth_centred, flattest, turns
from geo.spatial.ragged import Bools, Floats, Ints, blocks, distinct, distinct_pairs, expand, offsets, run_starts

# Pieces of tracks in one time slice, and the cells that each piece can affect. Pure.

MINUTE_MS: Final = 60_000
SLICE_MINUTES: Final = 15
SLICE_MS: Final = SLICE_MINUTES * MINUTE_MS
"""A slice of time: 15 minutes, so that slices do not span days."""

_EARTH_M: Final = 6_378_137.0
_STEPS_AT_ONCE: Final = 1 << 16
_MIXERS: Final = np.array([73_856_093, 19_349_663, 83_492_791], dtype=np.int64)


def cut(segments: Segments, span_ms: int = SLICE_MS) -> tuple[Segments, Ints, Ints]:
    """Pieces of segments, each in one span of time: (pieces, the segment of each, the number of its span).

    A piece is a function of its segment and its span alone.
    """
    first = np.floor(segments.start_ms / span_ms).astype(np.int64)
    # a segment that ends where a span begins has no piece in that span
    last = np.ceil(segments.end_ms / span_ms).astype(np.int64) - 1
    owner, number = expand(first, last - first + 1)
    start = np.maximum(segments.start_ms[owner], number * span_ms)
    end = np.minimum(segments.end_ms[owner], (number + 1) * span_ms)
    begin_ms, length = segments.start_ms[owner], (segments.end_ms - segments.start_ms)[owner]
    px, py = segments.at(owner, (start - begin_ms) / length)
    qx, qy = segments.at(owner, (end - begin_ms) / length)
    # over the antimeridian a segment goes on beyond 180 degrees; each piece begins within them
    turns = np.floor((px + 180.0) / 360.0) * 360.0
    return Segments(px - turns, py, qx - turns, qy, start, end), owner, number


def length_m(segments: Segments) -> Floats:
    """At least the lengths of segments, even where lines that are straight in degrees bend."""
    east, north = turns(segments)
    return np.asarray(1.01 * _EARTH_M * (np.cos(np.radians(flattest(segments))) * east + north))


def cells(pieces: Segments, distance_m: float, cell_m: float) -> Iterator[tuple[Ints, Ints]]:
    """Pairs (piece, cell): all cells within half the distance of a piece; each piece whole in one block.

    Two pieces that come within the distance share a cell. A cell is a number that hardly any two places share; a
    collision does no harm. A long piece is divided into steps of a cell, so its cells grow with its length. With
    `cell_m` at least `distance_m` no step reaches more than 125.
    """
    steps = np.maximum(np.ceil(length_m(pieces) / cell_m), 1.0).astype(np.int64)
    for block in blocks(steps, _STEPS_AT_ONCE):
        piece, step = expand(np.zeros(block.stop - block.start, dtype=np.int64), steps[block])
        piece += block.start
        low, high = _boxes(pieces, piece, step, steps[piece], distance_m)
        # A step is no longer than a cell and bends by 0.8 of one at most: with half the distance, five cells each way.
        lowest = np.floor(low / cell_m).astype(np.int64)
        span = np.floor(high / cell_m).astype(np.int64) - lowest + 1
        row, rest = expand(np.zeros(span.shape[1], dtype=np.int64), span.prod(axis=0))
        x = rest % span[0, row]
        rest //= span[0, row]
        place = lowest[:, row] + np.stack([x, rest % span[1, row], rest // span[1, row]])
        yield distinct_pairs(piece[row], (place * _MIXERS[:, None]).sum(axis=0))


def _boxes(pieces: Segments, piece: Ints, step: Ints, of: Ints, distance_m: float) -> tuple[Corners, Corners]:
    """Boxes of steps of pieces, in earth-centred metres, wide enough for half the distance and for their own bulge."""
    one, other = (earth_centred(*pieces.at(piece, limit / of)) for limit in (step, step + 1))
    margin = distance_m / 2 + bulge_m(pieces, piece, 1.0 / of) + 1.0
    return np.minimum(one, other) - margin, np.maximum(one, other) + margin


# From fixes to pieces of tracks, and from near pieces to parts of encounters. No Spark.

# `find_encounters` is not used here: its slices depend on the whole call

_TENANT_SHIFT: Final = 24  # a shifted CRC is still far from 64 bits
COLUMNS: Final = ("px", "py", "qx", "qy", "start_ms", "end_ms")
"""The columns of `Segments` that make a piece."""

SEPARATOR: Final = "/"
"""Separates tenant and device in one column, as in `acme/eu-0001`; neither can contain it."""

FIXES: Final = pa.schema([*FIX, pa.field("asked", pa.int64())])
"""Fixes (`asked` is null), and the slices of devices that are asked for (`asked`: the slice; no fix).

Here and in the schemas below, `device` has the tenant before it."""

PIECES: Final = pa.schema(
    [
        pa.field("device", pa.string()),
        pa.field("slice", pa.int64()),
        pa.field("cell", pa.int64()),
        pa.field("asked", pa.bool_()),
        pa.field("home", pa.bool_()),
        pa.field("minutes", pa.int32()),
        *(pa.field(name, pa.float64()) for name in COLUMNS),
    ]
)
"""Pieces of tracks, one row for each cell that a piece may matter in; `asked`: the slice of its device is asked for.

`home`: the first row of the piece. `minutes`: when its device was (or may have been) in a crowd, bit k for minute k of
the slice."""

PARTS: Final = pa.schema(
    [
        pa.field("device_a", pa.string()),
        pa.field("device_b", pa.string()),
        pa.field("slice", pa.int64()),
        pa.field("start_ms", pa.float64()),
        pa.field("end_ms", pa.float64()),
        pa.field("min_m", pa.float64()),
        pa.field("t_min_ms", pa.float64()),
        pa.field("from_ms", pa.float64()),
        pa.field("to_ms", pa.float64()),
    ]
)
"""Parts of encounters, as in `Encounters`; parts of one pair and slice may overlap, and then agree."""


def tenants_of(names: pa.Array) -> pa.Array:
    return pc.list_element(pc.split_pattern(names, SEPARATOR, max_splits=1), 0)


def pieces_of(
    rows: pa.Table, slices: Ints, tracks: TrackSettings, *, apart_m: float, cell_m: float
) -> Iterator[pa.RecordBatch]:
    """Pieces (schema PIECES) in the given slices (ascending), from whole devices (schema FIXES)."""
    names = pc.unique(rows["device"].combine_chunks()).sort()
    device = pc.index_in(rows["device"], names).to_numpy()
    asked = rows["asked"].to_numpy()
    # with nulls the column comes as floats, null as NaN; integers are a column without a fix
    is_fix = np.isnan(asked) if asked.dtype.kind == "f" else np.zeros(len(asked), dtype=np.bool_)
    wanted = distinct(device[~is_fix] * np.int64(1 << 40) + asked[~is_fix].astype(np.int64))
    lat, lon = rows["latitude"].to_numpy(), rows["longitude"].to_numpy()
    use = is_fix & valid_positions(lat, lon)
    fixes = Fixes(
        device=device[use],
        t_ms=rows["t_ms"].to_numpy()[use],
        lat=lat[use],
        lon=lon[use],
        accuracy_m=rows["accuracy_m"].to_numpy()[use],
        speed_mps=rows["speed_mps"].to_numpy()[use],
    )
    track = build_tracks(fixes, tracks)
    pieces, owner, number = cut(segments_of(track))
    device = fixes.device[track.row[track.segments()]][owner]
    keep = np.flatnonzero(np.isin(number, slices))
    pieces = pieces.some(keep)
    device, number = device[keep], number[keep]
    is_asked = np.isin(device * np.int64(1 << 40) + number, wanted)
    # each tenant has cells of its own
    tenants = np.array([crc32(one.encode()) << _TENANT_SHIFT for one in tenants_of(names).to_pylist()], dtype=np.int64)
    for piece, cell in cells(pieces, apart_m, max(cell_m, apart_m)):
        columns: dict[str, Any] = {name: getattr(pieces, name)[piece] for name in COLUMNS}
        columns |= {"slice": number[piece], "cell": cell + tenants[device[piece]], "asked": is_asked[piece]}
        columns |= {"home": run_starts(piece), "minutes": np.zeros(len(piece), dtype=np.int32)}
        columns["device"] = names.take(pa.array(device[piece]))
        yield from pa.table([columns[name] for name in PIECES.names], schema=PIECES).to_batches()


def parts_of(pieces: pa.Table, distance_m: float, apart_m: float) -> Iterator[pa.RecordBatch]:
    """Parts (schema PARTS) of the encounters among pieces (schema PIECES) in which a device was asked for."""
    names = pc.unique(pieces["device"].combine_chunks())
    tenant = tenants_of(names).dictionary_encode().indices.to_numpy()[pc.index_in(pieces["device"], names).to_numpy()]
    slices = pieces["slice"].to_numpy()
    order = np.lexsort((tenant, slices))
    begins = np.flatnonzero(run_starts(slices[order], tenant[order]))
    for rows in np.split(order, begins[1:]) if len(order) else ():
        mine, number = pieces.take(rows), int(slices[rows[0]])
        names = pc.unique(mine["device"].combine_chunks()).sort()
        device = pc.index_in(mine["device"], names).to_numpy().astype(np.int64)
        start_ms = mine["start_ms"].to_numpy()
        # a piece comes once for each of its cells and blocks
        order = np.lexsort((start_ms, device))
        order = order[run_starts(device[order], start_ms[order])]
        row, segments, kind = _kinds(segments_in(mine).some(order), mine.take(order), number)
        parts = _parts(segments, device[order][row], kind, (distance_m, apart_m))
        columns: dict[str, Any] = {name: getattr(parts, name) for name in PARTS.names[3:]}
        columns |= {"device_a": names.take(pa.array(parts.device_a)), "device_b": names.take(pa.array(parts.device_b))}
        columns["slice"] = np.full(len(parts), number, dtype=np.int64)
        yield from pa.table([columns[name] for name in PARTS.names], schema=PARTS).to_batches()


def _kinds(segments: Segments, pieces: pa.Table, number: int) -> tuple[Ints, Segments, Ints]:
    """Pieces of a slice, cut where their device enters or leaves a crowd: (piece of each, segments, kinds).

    Two of one kind above 0 are not compared: 1, both are in a crowd; 2, neither was asked for. Every device in a crowd
    is asked for, so there is no third kind.
    """
    minutes, begin_ms = pieces["minutes"].to_numpy().astype(np.int64), number * SLICE_MS
    first = np.floor((segments.start_ms - begin_ms) / MINUTE_MS).astype(np.int64)
    last = np.ceil((segments.end_ms - begin_ms) / MINUTE_MS).astype(np.int64)
    assert ((first >= 0) & (last <= SLICE_MINUTES)).all(), "a piece lies in one slice"
    within = np.left_shift(1, last) - np.left_shift(1, first)
    both = ((minutes & within) != 0) & ((minutes & within) != within)
    mixed, plain = np.flatnonzero(both), np.flatnonzero(~both)
    parts, owner, minute = cut(segments.some(mixed), MINUTE_MS)
    row = np.concatenate([plain, mixed[owner]])
    bits = np.concatenate([within[plain], np.left_shift(1, minute - number * SLICE_MINUTES)])
    kind = np.where(minutes[row] & bits, 1, np.where(pieces["asked"].to_numpy()[row], 0, 2))
    columns = ((getattr(segments, name)[plain], getattr(parts, name)) for name in COLUMNS)
    return row, Segments(*map(np.concatenate, columns)), kind


def _parts(segments: Segments, device: Ints, kind: Ints, limits_m: tuple[float, float]) -> Encounters:
    """Compares each pair of pieces over all the time that they share, whatever made them candidates."""
    count = np.int64(len(segments))
    encounters = []
    for near in candidates(segments, device, limits_m[1], kind):
        pair = distinct(near.one * count + near.other)
        first, second = pair // count, pair % count
        start = np.maximum(segments.start_ms[first], segments.start_ms[second])
        end = np.minimum(segments.end_ms[first], segments.end_ms[second])
        encounters.append(meetings(device, segments, Candidates(first, second, start, end), *limits_m))
    return join_encounters(encounters)


def segments_in(pieces: pa.Table) -> Segments:
    return Segments(*(pieces[name].to_numpy() for name in COLUMNS))


def slice_day(number: int) -> int:
    """The UTC day of a slice, in days since 1970."""
    return number * SLICE_MS // 86_400_000


CROWD: Final = "*"
"""The partner of a device in a crowd; no device can have this id, and it sorts before all ids."""

EDGES_PER_MINUTE: Final = 768
"""A way that comes through more cubes in a minute is not a vehicle's, and is not counted."""
_LEAST_EDGE_M: Final = 10.0
_HELD_MS: Final = 150_000
"""For this long before and after its minutes in a crowd a device may not have left it; within the slice."""
_BITS: Final = 21  # from one side of the earth to the other are fewer than 2^21 cubes of 10 m
_COLUMNS: Final = tuple((x << 2 * _BITS) + (y << _BITS) for x in (-1, 0, 1) for y in (-1, 0, 1))
_CROWD_STEPS_AT_ONCE: Final = 1 << 18
_PAIRS_AT_ONCE: Final = 1 << 20

PLACES: Final = pa.schema(
    [pa.field("device", pa.string()), pa.field("minute", pa.int64()), pa.field("cell", pa.int64())]
)
"""The cubes that each device came through in each minute, each at least once."""

IN_CROWD: Final = pa.schema(
    [pa.field("device", pa.string()), pa.field("slice", pa.int64()), pa.field("minutes", pa.int32())]
)
"""Devices in a crowd. `minutes`: bit k stands for minute k of the slice."""


def places_of(pieces: pa.Table, apart_m: float) -> Iterator[pa.RecordBatch]:
    """Places (schema PLACES) from the pieces (schema PIECES) of whole devices, in order of device and time."""
    pieces = pieces.filter(pieces["home"])
    segments = segments_in(pieces)
    edge_m = max(apart_m, _LEAST_EDGE_M)
    lasts_ms, metres = segments.end_ms - segments.start_ms, length_m(segments)
    slow = np.flatnonzero(metres * MINUTE_MS <= EDGES_PER_MINUTE * edge_m * lasts_ms)
    names = pc.unique(pieces["device"].combine_chunks())
    device = pc.index_in(pieces["device"], names).to_numpy()
    steps = lasts_ms[slow] / MINUTE_MS + metres[slow] / edge_m + 2.0
    for block in blocks(steps.astype(np.int64), _CROWD_STEPS_AT_ONCE):
        rows = slow[block]
        parts, owner, minute = cut(segments.some(rows), MINUTE_MS)
        part, cell = _cells(parts, edge_m)
        where, when = device[rows[owner[part]]], minute[part]
        # rows of a device and minute follow each other
        order = np.lexsort((cell, np.cumsum(run_starts(where, when))))
        order = order[run_starts(where[order], when[order], cell[order])] if len(order) else order
        columns = [names.take(pa.array(where[order])), when[order], cell[order]]
        yield from pa.table(columns, schema=PLACES).to_batches()


def _cells(parts: Segments, edge_m: float) -> tuple[Ints, Ints]:
    """Pairs (part, cube): all cubes that each part comes through; in steps of an edge, by their boxes."""
    steps = np.maximum(np.ceil(length_m(parts) / edge_m), 1.0).astype(np.int64)
    part, step = expand(np.zeros(len(parts), dtype=np.int64), steps)
    ends = [earth_centred(*parts.at(part, limit / steps[part])) for limit in (step, step + 1)]
    margin = bulge_m(parts, part, 1.0 / steps[part]) + 1e-6 * edge_m
    low = np.floor((np.minimum(*ends) - margin) / edge_m).astype(np.int64)
    high = np.floor((np.maximum(*ends) + margin) / edge_m).astype(np.int64)
    row, cell = expand(np.zeros(len(part), dtype=np.int64), (high - low + 1).prod(axis=0))
    size_x, size_y = (high - low + 1)[:2, row]
    x, y, z = (
        low[0, row] + cell % size_x,
        low[1, row] + cell // size_x % size_y,
        low[2, row] + cell // (size_x * size_y),
    )
    return part[row], (x << 2 * _BITS) + (y << _BITS) + z


def crowded(places: pa.Table, most: int) -> Iterator[pa.RecordBatch]:
    """Which devices are in a crowd when (schema IN_CROWD, a row a minute), from the places (schema PLACES) of whole
    minutes.

    A device is in a crowd if more than `most` devices, with itself, come through a cube of its way and the 26 around
    it.
    """
    minute, cell = places["minute"].to_numpy(), places["cell"].to_numpy()
    names = pc.unique(places["device"].combine_chunks())
    device = pc.index_in(places["device"], names).to_numpy().astype(np.int64)
    tenant = tenants_of(names).dictionary_encode().indices.to_numpy()[device]
    order = np.lexsort((tenant, minute))
    minute, cell, device, tenant = minute[order], cell[order], device[order], tenant[order]
    begins = np.append(np.flatnonzero(run_starts(minute, tenant)), len(minute)).tolist()
    who, when = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for begin, end in pairwise(begins):
        if end - begin > most:
            mine = device[begin:end]
            found = distinct(mine[_Cubes(mine, cell[begin:end]).crowded(most)])
            who.append(found)
            when.append(np.full(len(found), minute[begin]))
    in_crowd, at = np.concatenate(who), np.concatenate(when)
    number = at // SLICE_MINUTES
    bit = np.left_shift(1, at - number * SLICE_MINUTES).astype(np.int32)
    yield from pa.table([names.take(pa.array(in_crowd)), number, bit], schema=IN_CROWD).to_batches()


class _Cubes:
    """The cubes of one minute, and the devices in each. A device may be in many."""

    def __init__(self, device: Ints, cell: Ints) -> None:
        self._cell, self._place, count = np.unique(cell, return_inverse=True, return_counts=True)
        self._device = device[np.argsort(self._place, kind="stable")]
        self._first = offsets(count)

    def crowded(self, most: int) -> Bools:
        """For each row: whether more than `most` devices come through the cube and the 26 around it."""
        rows = np.zeros(len(self._cell), dtype=np.int64)
        for low, high in self._around(slice(None)):
            rows += self._first[high] - self._first[low]
        full = rows > most
        # `rows` counts a device once for each of the 27 that it comes through
        some = np.flatnonzero(full)
        for block in blocks(rows[some], _PAIRS_AT_ONCE):
            full[some[block]] = self._devices_around(some[block]) > most
        return np.asarray(full[self._place])

    def _around(self, cubes: Ints | slice) -> Iterator[tuple[Ints, Ints]]:
        """Ranges of the cubes around each cube, itself included: nine columns of three."""
        for column in _COLUMNS:
            low, high = (self._cell[cubes] + (column + end) for end in (-1, 1))
            yield np.searchsorted(self._cell, low), np.searchsorted(self._cell, high, side="right")

    def _devices_around(self, cubes: Ints) -> Ints:
        """The number of devices in each cube and the 26 around it."""
        many, pairs = np.int64(self._device.max() + 1), []
        for low, high in self._around(cubes):
            one, at = expand(self._first[low], self._first[high] - self._first[low])
            pairs.append(one * many + self._device[at])
        return np.bincount(distinct(np.concatenate(pairs)) // many, minlength=len(cubes))


def parts_of_crowds(in_crowd: pa.Table, distance_m: float) -> Iterator[pa.RecordBatch]:
    """Parts (schema PARTS) of encounters with `CROWD`, one for each stretch of minutes of a device and slice.

    The approach is not measured: `min_m` is the distance itself.
    """
    rows: list[dict[str, Any]] = []
    for row in in_crowd.to_pylist():
        tenant = row["device"].partition(SEPARATOR)[0]
        from_ms, to_ms = (float(number * SLICE_MS) for number in (row["slice"], row["slice"] + 1))
        for first, last in _stretches(row["minutes"]):
            start_ms = float((row["slice"] * SLICE_MINUTES + first) * MINUTE_MS)
            end_ms = float((row["slice"] * SLICE_MINUTES + last) * MINUTE_MS)
            part = {"slice": row["slice"], "start_ms": start_ms, "end_ms": end_ms}
            part |= {"from_ms": max(from_ms, start_ms - _HELD_MS), "to_ms": min(to_ms, end_ms + _HELD_MS)}
            pair = {"device_a": f"{tenant}{SEPARATOR}{CROWD}", "device_b": row["device"]}
            rows.append(pair | {"min_m": distance_m, "t_min_ms": start_ms} | part)
    yield from pa.Table.from_pylist(rows, schema=PARTS).to_batches()


def _stretches(minutes: int) -> list[tuple[int, int]]:
    """The stretches of set bits: from the first to the one after the last."""
    lowest_first = f"{minutes:b}"[::-1]
    return [stretch.span() for stretch in re.finditer("1+", lowest_first)]
