"""Crowds: where so many devices stand together that their pairs are beyond counting. Knows no Spark.

Ten thousand vehicles in one yard are fifty million pairs, and nobody reads them. So a device that has more than a given
number of devices around it is in a *crowd* for that minute. Two devices that are both in a crowd are not told as a
pair; each of them is told once, as an encounter with `CROWD`: as many rows as devices, and nothing left out unsaid.

Whether a device is in a crowd in a minute depends on where all devices were in that minute, and on nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cloud_jobs.proximity.meeting import PARTS, segments_in
from cloud_jobs.proximity.slices import MINUTE_MS, SLICE_MINUTES
from geo.spatial.nearby import earth_centred
from geo.spatial.ragged import Ints, expand, run_starts

CROWD: Final = "*"
"""The one whom a device in a crowd meets; no device can be called so, and it comes before all of them."""

_LEAST_CELL_M: Final = 10.0
_BITS: Final = 21  # from one side of the earth to the other are fewer than 2^21 cells of 10 m
_AROUND: Final = tuple((x << 2 * _BITS) + (y << _BITS) + z for x in (-1, 0, 1) for y in (-1, 0, 1) for z in (-1, 0, 1))

PLACES: Final = pa.schema(
    [pa.field("device", pa.string()), pa.field("minute", pa.int64()), pa.field("cell", pa.int64())]
)
"""Where each device was in each minute: once, where it was first."""

IN_CROWD: Final = pa.schema(
    [pa.field("device", pa.string()), pa.field("slice", pa.int64()), pa.field("minutes", pa.int32())]
)
"""Devices in a crowd. `minutes`: bit k stands for minute k of the slice."""


def places_of(pieces: pa.Table, distance_m: float) -> Iterator[pa.RecordBatch]:
    """Places (schema PLACES) from the pieces (schema PIECES) of whole devices, in order of device and time."""
    pieces = pieces.filter(pieces["home"])
    segments = segments_in(pieces)
    names = pc.unique(pieces["device"].combine_chunks())
    device = pc.index_in(pieces["device"], names).to_numpy()
    first = np.floor(segments.start_ms / MINUTE_MS).astype(np.int64)
    last = np.ceil(segments.end_ms / MINUTE_MS).astype(np.int64)
    piece, minute = expand(first, last - first)
    # a track that breaks and begins again within a minute has one place in it
    fresh = run_starts(device[piece], minute)
    piece, minute = piece[fresh], minute[fresh]
    start, end = segments.start_ms[piece], segments.end_ms[piece]
    at = np.maximum(start, minute * float(MINUTE_MS))
    lon, lat = segments.at(piece, (at - start) / (end - start))
    x, y, z = np.floor(earth_centred(lon, lat) / max(distance_m, _LEAST_CELL_M)).astype(np.int64)
    columns = [names.take(pa.array(device[piece])), minute, (x << 2 * _BITS) + (y << _BITS) + z]
    yield from pa.table(columns, schema=PLACES).to_batches()


def crowded(places: pa.Table, most: int) -> Iterator[pa.RecordBatch]:
    """Who is in a crowd when (schema IN_CROWD, a row a minute), from the places (schema PLACES) of whole minutes.

    In one is a device if more than `most` devices, with itself, are in its cell and those around it. The cells are
    cubes with an edge of the distance, so whoever is in no crowd has fewer than `most` others within the distance where
    it was first in the minute; a gathering that comes and goes between two such moments is not seen.
    """
    minute, cell = places["minute"].to_numpy(), places["cell"].to_numpy()
    begins = np.append(np.flatnonzero(run_starts(minute)), len(minute)).tolist()
    found = [np.zeros(0, dtype=np.int64)]
    for begin, end in pairwise(begins):
        if end - begin > most:
            found.append(begin + np.flatnonzero(_around(cell[begin:end]) > most))
    row = np.concatenate(found)
    number = minute[row] // SLICE_MINUTES
    bit = np.left_shift(1, minute[row] - number * SLICE_MINUTES).astype(np.int32)
    columns = [places["device"].take(pa.array(row)), number, bit]
    yield from pa.table(columns, schema=IN_CROWD).to_batches()


def _around(cell: Ints) -> Ints:
    """How many are in the cell of each and in the 26 around it."""
    held, place, count = np.unique(cell, return_inverse=True, return_counts=True)
    total = np.zeros(len(held), dtype=np.int64)
    for step in _AROUND:
        at = np.minimum(np.searchsorted(held, held + step), len(held) - 1)
        total += np.where(held[at] == held + step, count[at], 0)
    return np.asarray(total[place], dtype=np.int64)


def parts_of_crowds(in_crowd: pa.Table, distance_m: float) -> Iterator[pa.RecordBatch]:
    """Parts (schema PARTS) of encounters with `CROWD`, one for each stretch of minutes of a device and slice.

    How close they came is not looked at: `min_m` is the distance itself.
    """
    rows: list[dict[str, Any]] = []
    for one in in_crowd.to_pylist():
        for first, last in _stretches(one["minutes"]):
            start_ms = float((one["slice"] * SLICE_MINUTES + first) * MINUTE_MS)
            end_ms = float((one["slice"] * SLICE_MINUTES + last) * MINUTE_MS)
            part = {"slice": one["slice"], "start_ms": start_ms, "end_ms": end_ms}
            rows.append(
                {"device_a": CROWD, "device_b": one["device"], "min_m": distance_m, "t_min_ms": start_ms} | part
            )
    yield from pa.Table.from_pylist(rows, schema=PARTS).to_batches()


def _stretches(minutes: int) -> Iterator[tuple[int, int]]:
    """The stretches of bits that are set: from the first to the one after the last."""
    at = 0
    while minutes >> at:
        if minutes >> at & 1:
            begin = at
            while minutes >> at & 1:
                at += 1
            yield begin, at
        at += 1
