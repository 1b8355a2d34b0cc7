"""From fixes to pieces of tracks, and from pieces that lie near each other to the parts of encounters. Knows no Spark.

A part is the stretch of one encounter in one slice of time, or one in which two are not apart and would be of an
encounter if they met before or after it. Each is a function of the two devices' fixes around the
slice alone: not of who else was computed with them, nor of how the work was cut. Devices of two tenants never meet.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cloud_jobs.lake.schemas import FIX
from cloud_jobs.proximity.slices import MINUTE_MS, SLICE_MINUTES, SLICE_MS, cells, cut
from geo.spatial import Encounters, Fixes, TrackSettings, build_tracks, valid_positions
from geo.spatial.clip import Segments, segments_of

# the engine's evaluation of pairs of segments; `find_encounters` cuts them in slices that depend on the whole call
from geo.spatial.encounters import join_encounters, meetings
from geo.spatial.nearby import Candidates, candidates
from geo.spatial.ragged import Ints, distinct, run_starts

_TENANT_SHIFT: Final = 24  # with it, a CRC is still far from the bounds of 64 bits
COLUMNS: Final = ("px", "py", "qx", "qy", "start_ms", "end_ms")
"""The columns of `Segments` that make a piece."""

SEPARATOR: Final = "/"
"""What stands between tenant and device where one column has both, as in `acme/eu-0001`; in neither it can be."""

FIXES: Final = pa.schema([*FIX, pa.field("asked", pa.int64())])
"""Fixes (`asked` is null), and the slices of devices that are asked for (`asked`: the slice; no fix). Here and in what
is made of it `device` has the tenant before it."""

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
    """The tenants of devices that are named with it."""
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
        # a piece is here once for each cell or block that it came by
        order = np.lexsort((start_ms, device))
        order = order[run_starts(device[order], start_ms[order])]
        row, segments, kind = _kinds(segments_in(mine).some(order), mine.take(order), number)
        parts = _parts(segments, device[order][row], kind, (distance_m, apart_m))
        columns: dict[str, Any] = {name: getattr(parts, name) for name in PARTS.names[3:]}
        columns |= {"device_a": names.take(pa.array(parts.device_a)), "device_b": names.take(pa.array(parts.device_b))}
        columns["slice"] = np.full(len(parts), number, dtype=np.int64)
        yield from pa.table([columns[name] for name in PARTS.names], schema=PARTS).to_batches()


def _kinds(segments: Segments, pieces: pa.Table, number: int) -> tuple[Ints, Segments, Ints]:
    """Pieces of a slice, cut where their device comes into a crowd or out of it: (piece of each, segments, kinds).

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
    """Each pair of pieces is compared over all the time that they share, whatever made them candidates."""
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
    """The columns of pieces as segments."""
    return Segments(*(pieces[name].to_numpy() for name in COLUMNS))


def slice_day(number: int) -> int:
    """The UTC day of a slice, in days since 1970."""
    return number * SLICE_MS // 86_400_000
