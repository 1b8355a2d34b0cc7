"""Crowds: where so many devices stand together that their pairs are beyond counting. Knows no Spark.

Ten thousand vehicles in one yard are fifty million pairs, and nobody reads them. So a device that has more than a given
number of devices around it is in a *crowd* for that minute. Two devices that are both in a crowd have no
encounter as a pair; each of them has one with `CROWD`: as many rows as devices, and none is left out.

Space is cut into cubes with an edge of the distance at which two part, time into spans of 10 s. Around a device are, in
a span, all devices whose ways in it come through a cube that its own way comes through, or through one beside it. So
whoever is in no crowd has never in that minute more than the limit, itself among them, within that distance. That
depends on where all devices of its tenant were in the minute, and on nothing else.

It is counted in two steps: roughly, in cubes of eight times the edge and whole minutes, and then only near where that
was too many. The first finds all that the second does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cloud_jobs.proximity.meeting import PARTS, SEPARATOR, segments_in, tenants_of
from cloud_jobs.proximity.slices import MINUTE_MS, SLICE_MINUTES, SLICE_MS, cut, length_m
from geo.spatial.clip import Segments
from geo.spatial.nearby import bulge_m, earth_centred
from geo.spatial.ragged import Bools, Ints, blocks, distinct, distinct_pairs, expand, offsets, run_starts

CROWD: Final = "*"
"""The one whom a device in a crowd meets; no device can be called so, and it comes before all of them."""

SPAN_MS: Final = 10_000
EDGES_PER_SPAN: Final = 128
"""A way that comes through more cubes in a span is no vehicle's, and is not counted."""
_LEAST_EDGE_M: Final = 10.0
_HELD_MS: Final = 150_000
"""So long before and after its minutes in a crowd a device has not surely left it; in the same slice."""
_BITS: Final = 21  # from one side of the earth to the other are fewer than 2^21 cubes of 10 m
_COLUMNS: Final = tuple((x << 2 * _BITS) + (y << _BITS) for x in (-1, 0, 1) for y in (-1, 0, 1))
_STEPS_AT_ONCE: Final = 1 << 18
_PAIRS_AT_ONCE: Final = 1 << 20

PLACES: Final = pa.schema([pa.field("device", pa.string()), pa.field("span", pa.int64()), pa.field("cell", pa.int64())])
"""The cubes that each device came through in each span of time, each at least once."""

IN_CROWD: Final = pa.schema(
    [pa.field("device", pa.string()), pa.field("slice", pa.int64()), pa.field("minutes", pa.int32())]
)
"""Devices in a crowd. `minutes`: bit k stands for minute k of the slice."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Cubes of `fold` edges, spans of `span_ms`."""

    fold: int
    span_ms: int


ROUGH: Final = Scale(8, MINUTE_MS)
FINE: Final = Scale(1, SPAN_MS)


def places_of(pieces: pa.Table, apart_m: float, scale: Scale, *, everywhere: bool) -> Iterator[pa.RecordBatch]:
    """Places (schema PLACES) from the pieces (schema PIECES) of whole devices, in order of device and time.

    In all minutes, or in those that the pieces name (`minutes`).
    """
    pieces = pieces.filter(pieces["home"])
    segments = segments_in(pieces)
    edge_m = max(apart_m, _LEAST_EDGE_M)
    lasts_ms, metres = segments.end_ms - segments.start_ms, length_m(segments)
    slow = np.flatnonzero(metres * SPAN_MS <= EDGES_PER_SPAN * edge_m * lasts_ms)
    number, minutes = pieces["slice"].to_numpy(), pieces["minutes"].to_numpy()
    names = pc.unique(pieces["device"].combine_chunks())
    device = pc.index_in(pieces["device"], names).to_numpy()
    edge_m *= scale.fold
    steps = lasts_ms[slow] / scale.span_ms + metres[slow] / edge_m + 2.0
    for block in blocks(steps.astype(np.int64), _STEPS_AT_ONCE):
        rows = slow[block]
        parts, owner, span = cut(segments.some(rows), scale.span_ms)
        owner = rows[owner]
        if not everywhere:
            minute = span * scale.span_ms // MINUTE_MS - number[owner] * SLICE_MINUTES
            some = np.flatnonzero(minutes[owner] >> minute & 1)
            parts, owner, span = parts.some(some), owner[some], span[some]
        part, cell = _cells(parts, edge_m)
        where, when = device[owner[part]], span[part]
        # those of a device and span follow on each other
        order = np.lexsort((cell, np.cumsum(run_starts(where, when))))
        order = order[run_starts(where[order], when[order], cell[order])] if len(order) else order
        columns = [names.take(pa.array(where[order])), when[order], cell[order]]
        yield from pa.table(columns, schema=PLACES).to_batches()


def _cells(parts: Segments, edge_m: float) -> tuple[Ints, Ints]:
    """Pairs (part, cube): all cubes that each part comes through; looked at in steps of an edge, by their boxes."""
    steps = np.maximum(np.ceil(length_m(parts) / edge_m), 1.0).astype(np.int64)
    part, step = expand(np.zeros(len(parts), dtype=np.int64), steps)
    ends = [earth_centred(*parts.at(part, limit / steps[part])) for limit in (step, step + 1)]
    # how far a step bends, and what the boxes of the shorter steps of the finer scale add to it: a 36th part
    margin = 1.08 * bulge_m(parts, part, 1.0 / steps[part]) + 1e-6 * edge_m
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


def near_crowds(places: pa.Table, most: int) -> Iterator[pa.RecordBatch]:
    """Who may be in a crowd when, or count in one (schema IN_CROWD, a row a minute), from rough places (PLACES) of
    whole spans.
    """
    yield from _those_in(places, most, ROUGH, beside=True)


def crowded(places: pa.Table, most: int) -> Iterator[pa.RecordBatch]:
    """Who is in a crowd when (schema IN_CROWD, a row a minute), from the fine places (schema PLACES) of whole spans.

    In one is a device if more than `most` devices, with itself, come through a cube of its way and the 26 around it.
    """
    yield from _those_in(places, most, FINE, beside=False)


def _those_in(places: pa.Table, most: int, scale: Scale, *, beside: bool) -> Iterator[pa.RecordBatch]:
    span, cell = places["span"].to_numpy(), places["cell"].to_numpy()
    names = pc.unique(places["device"].combine_chunks())
    device = pc.index_in(places["device"], names).to_numpy().astype(np.int64)
    tenant = tenants_of(names).dictionary_encode().indices.to_numpy()[device]
    order = np.lexsort((tenant, span))
    span, cell, device, tenant = span[order], cell[order], device[order], tenant[order]
    begins = np.append(np.flatnonzero(run_starts(span, tenant)), len(span)).tolist()
    who, when = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for begin, end in pairwise(begins):
        if end - begin > most:
            crowded = distinct(
                device[begin:end][_Cubes(device[begin:end], cell[begin:end]).crowded(most, beside=beside)]
            )
            who.append(crowded)
            when.append(np.full(len(crowded), span[begin] * scale.span_ms // MINUTE_MS))
    device, minute = distinct_pairs(np.concatenate(who), np.concatenate(when))
    number = minute // SLICE_MINUTES
    bit = np.left_shift(1, minute - number * SLICE_MINUTES).astype(np.int32)
    columns = [names.take(pa.array(device)), number, bit]
    yield from pa.table(columns, schema=IN_CROWD).to_batches()


class _Cubes:
    """The cubes of one span, and the devices in each. A device may be in many."""

    def __init__(self, device: Ints, cell: Ints) -> None:
        self._cell, self._place, count = np.unique(cell, return_inverse=True, return_counts=True)
        self._device = device[np.argsort(self._place, kind="stable")]
        self._first = offsets(count)

    def crowded(self, most: int, *, beside: bool) -> Bools:
        """Of the rows: do more than `most` devices come through the cube and the 26 around it? With `beside`: or
        through one of these 26 and those around that?
        """
        rows = np.zeros(len(self._cell), dtype=np.int64)
        for low, high in self._around(slice(None)):
            rows += self._first[high] - self._first[low]
        full = rows > most
        # a device that comes through several of the 27 is in `rows` as often
        some = np.flatnonzero(full)
        for block in blocks(rows[some], _PAIRS_AT_ONCE):
            full[some[block]] = self._devices_around(some[block]) > most
        if beside:
            changes = np.zeros(len(full) + 1, dtype=np.int64)
            for low, high in self._around(np.flatnonzero(full)):
                np.add.at(changes, low, 1)
                np.add.at(changes, high, -1)
            full = np.cumsum(changes)[:-1] > 0
        return np.asarray(full[self._place])

    def _around(self, cubes: Ints | slice) -> Iterator[tuple[Ints, Ints]]:
        """From where to where the cubes around each are, itself among them: of those upright beside it, nine times."""
        for column in _COLUMNS:
            low, high = (self._cell[cubes] + (column + end) for end in (-1, 1))
            yield np.searchsorted(self._cell, low), np.searchsorted(self._cell, high, side="right")

    def _devices_around(self, cubes: Ints) -> Ints:
        """How many devices are in each cube and the 26 around it."""
        many, pairs = np.int64(self._device.max() + 1), []
        for low, high in self._around(cubes):
            one, at = expand(self._first[low], self._first[high] - self._first[low])
            pairs.append(one * many + self._device[at])
        return np.bincount(distinct(np.concatenate(pairs)) // many, minlength=len(cubes))


def parts_of_crowds(in_crowd: pa.Table, distance_m: float) -> Iterator[pa.RecordBatch]:
    """Parts (schema PARTS) of encounters with `CROWD`, one for each stretch of minutes of a device and slice.

    How close they came is not looked at: `min_m` is the distance itself.
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


def _stretches(minutes: int) -> Iterator[tuple[int, int]]:
    """The stretches of bits that are set: from the first to the one after the last."""
    minute = 0
    while minutes >> minute:
        if minutes >> minute & 1:
            begin = minute
            while minutes >> minute & 1:
                minute += 1
            yield begin, minute
        minute += 1
