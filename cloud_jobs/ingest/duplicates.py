"""Parts that hold duplicates are filtered again, and their duplicates are held against the records that are stored.

What is kept is written anew before the commit. After it, when the table holds a record of each id, what came again is
compared: a record is in conflict if its content is another. Which files can hold the stored one is known from their
days and bounds: the table is not scanned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from numpy.typing import NDArray
from pyarrow.fs import FileSystem

from cloud_jobs.ingest.parts import WrittenPart
from cloud_jobs.ingest.quarantine import RECORD_ID, QuarantineFile, conflict_rows, write_quarantine
from cloud_jobs.lake.coverage import DeviceStream
from cloud_jobs.lake.data_files import DataFile, day_of, read_data_file, write_data_files
from cloud_jobs.lake.erasures import Erasure, is_erased
from cloud_jobs.lake.row_sizes import in_pieces
from cloud_jobs.lake.schemas import CONTENT, RECORDS
from cloud_jobs.lake.stored_files import row_groups
from cloud_jobs.lake.stream_order import in_order, stream_codes
from cloud_jobs.lake.tables import Lake
from waybill.record import IntervalSet

_CONFLICTS_AT_ONCE: Final = 10_000
"""So many conflicts become rows of the quarantine, and a file of it, together."""
_STORED_COLUMNS: Final = [*RECORD_ID, *CONTENT]
_TEXTS: Final = ("name", "text", "payload")
_MAX_NAMES: Final = 100
"""So many tenants or devices are asked for one by one, more as a range of names."""


class RepeatedPart(NamedTuple):
    """A part of a micro-batch that holds duplicates: its files as they were first written.

    `kept`: of these streams only these seqs stay, each once; of others all.
    """

    files: tuple[DataFile, ...]
    kept: Mapping[DeviceStream, IntervalSet]

    def split(self, files: FileSystem) -> tuple[pa.Table, pa.Table]:
        """Its records that stay, and those that came again, both in order."""
        rows = in_order(pa.concat_tables([read_data_file(files, file) for file in self.files]).combine_chunks())
        keep = _kept_rows(rows, self.kept)
        return rows.filter(pa.array(keep)), rows.filter(pa.array(~keep))


class ComparedPart(NamedTuple):
    """A part that holds duplicates, and the table's files that may hold records of their ids, likely ones first.

    `erasures`: what is erased is in none of them.
    """

    repeated: RepeatedPart
    stored: tuple[str, ...]
    erasures: tuple[Erasure, ...] = ()


def repeated_parts(
    parts: Sequence[WrittenPart], kept: Mapping[int, Mapping[DeviceStream, IntervalSet]]
) -> list[RepeatedPart]:
    """The parts that hold duplicates. `kept`: what stays of them, as `deduplicate` has it."""
    return [RepeatedPart(parts[at].files, streams) for at, streams in kept.items()]


def filter_part(files: FileSystem, now: datetime) -> Callable[[RepeatedPart], list[DataFile]]:
    """A function that writes what is kept of a part into `files`, where the part is, too."""

    def filtered(part: RepeatedPart) -> list[DataFile]:
        kept, _ = part.split(files)
        return write_data_files(files, kept, now) if kept.num_rows else []

    return filtered


def compared_parts(
    opened: DeltaTable,
    parts: Sequence[WrittenPart],
    kept: Mapping[int, Mapping[DeviceStream, IntervalSet]],
    erasures: Iterable[Erasure] = (),
) -> list[ComparedPart]:
    """The parts that hold duplicates, after what was kept of them was committed to the table that is `opened`."""
    found = []
    for at, part in zip(kept, repeated_parts(parts, kept), strict=True):
        days = {file.day for file in part.files}
        stored = _Bounds.of({stream: parts[at].streams[stream][0].received for stream in part.kept}).stored(opened)
        # what came again unchanged is of the same day: files of others are mostly not opened
        found.append(
            ComparedPart(part, tuple(sorted(stored, key=lambda path: day_of(path) not in days)), tuple(erasures))
        )
    return found


class Conflicts(NamedTuple):
    """How many records of a part came again with another content than the one stored, and the files that have it."""

    records: int
    quarantined: tuple[QuarantineFile, ...]


def find_conflicts(lake: Lake, ingest_number: int, now: datetime) -> Callable[[ComparedPart], Conflicts]:
    """A function that finds the conflicts of a part, and writes them into files of the quarantine."""

    def found(part: ComparedPart) -> Conflicts:
        rows, written = _conflicts(lake.files("records"), part), list[QuarantineFile]()
        for piece in in_pieces(rows):
            for at in range(0, piece.num_rows, _CONFLICTS_AT_ONCE):
                some = conflict_rows(piece.slice(at, _CONFLICTS_AT_ONCE), now)
                written += write_quarantine(lake.files("quarantine"), some, ingest_number, now)
        return Conflicts(rows.num_rows, tuple(written))

    return found


def _conflicts(files: FileSystem, part: ComparedPart) -> pa.Table:
    repeated = part.repeated.split(files)[1]
    again = repeated.select(_STORED_COLUMNS)
    if not again.num_rows:
        return again
    bounds = _bounds_of(again)
    # of an erased record no other content is known: not looked for in file after file, nor in conflict
    found = same = is_erased(repeated, part.erasures).combine_chunks().to_numpy(zero_copy_only=False)
    for path in part.stored:
        # the table has each record once
        if found.all():
            break
        for stored in _stored_rows(files, path, bounds, again):
            here = _compared(again, stored)
            found, same = found | here[0], same | here[1]
    return again.filter(pa.array(found & ~same))


class _Bounds(NamedTuple):
    """Between what the ids of duplicates lie."""

    tenants: tuple[str, ...]
    devices: tuple[str, ...]
    epochs: tuple[int, int]
    seqs: tuple[int, int]

    @classmethod
    def of(cls, received: Mapping[DeviceStream, IntervalSet]) -> _Bounds:
        epochs = [stream.epoch for stream in received]
        bounds = [bound for seqs in received.values() for ends in (seqs.ranges[0], seqs.ranges[-1]) for bound in ends]
        tenants = tuple(sorted({stream.tenant for stream in received}))
        devices = tuple(sorted({stream.device for stream in received}))
        return cls(tenants, devices, (min(epochs), max(epochs)), (min(bounds), max(bounds)))

    def stored(self, opened: DeltaTable) -> list[str]:
        """The paths of the table's files that may hold such ids, by the bounds that its log has of them."""
        named = f"{_named('tenant', self.tenants)} AND {_named('device', self.devices)}"
        predicate = f"{named} AND epoch BETWEEN {self.epochs[0]} AND {self.epochs[1]}"
        predicate += f" AND seq BETWEEN {self.seqs[0]} AND {self.seqs[1]}"
        root = opened.table_uri.rstrip("/").removeprefix("file://")
        uris = opened.file_uris(file_pruning_predicate=predicate)
        return [unquote(uri.removeprefix("file://"))[len(unquote(root)) + 1 :] for uri in uris]


def _named(column: str, names: Sequence[str]) -> str:
    """The SQL condition for one of these names, which are in order."""
    # what tenants and devices may be called needs no escape in SQL: see telemetry.DEVICE_PATTERN
    assert not any("'" in name for name in names)
    if len(names) > _MAX_NAMES:
        return f"{column} BETWEEN '{names[0]}' AND '{names[-1]}'"
    listed = ", ".join(f"'{name}'" for name in names)
    return f"{column} IN ({listed})"


def _kept_rows(rows: pa.Table, kept: Mapping[DeviceStream, IntervalSet]) -> NDArray[np.bool_]:
    """Which rows stay, of rows that are in order."""
    keep = np.ones(rows.num_rows, bool)
    seqs, codes = rows["seq"].to_numpy(), stream_codes(rows)
    starts = np.flatnonzero(np.r_[True, codes[1:] != codes[:-1]])
    firsts = rows.select(["tenant", "device", "epoch"]).take(pa.array(starts)).to_pylist()
    for (start, end), first in zip(pairwise([*starts.tolist(), rows.num_rows]), firsts, strict=True):
        wanted = kept.get(DeviceStream(**first))
        if wanted is not None:
            mine = seqs[start:end]
            is_first = np.r_[True, mine[1:] != mine[:-1]]
            keep[start:end] = is_first & _within(mine, wanted)
    return keep


def _within(seqs: NDArray[np.int64], wanted: IntervalSet) -> NDArray[np.bool_]:
    bounds = np.array(wanted.ranges, np.int64).reshape(-1, 2)
    at = np.searchsorted(bounds[:, 0], seqs, side="right") - 1
    inside: NDArray[np.bool_] = (at >= 0) & (seqs <= np.r_[bounds[:, 1], 0][at])
    return inside


def _bounds_of(rows: pa.Table) -> _Bounds:
    def ends(name: str) -> tuple[Any, Any]:
        found = pc.min_max(rows[name]).as_py()
        return found["min"], found["max"]

    return _Bounds(ends("tenant"), ends("device"), ends("epoch"), ends("seq"))


def _stored_rows(files: FileSystem, path: str, bounds: _Bounds, again: pa.Table) -> Iterator[pa.Table]:
    """The records of a file that have the ids of others, in pieces that fit into memory."""
    ids = again.select([*RECORD_ID])
    with pq.ParquetFile(path, filesystem=files, read_dictionary=[*_TEXTS]) as file:
        for group in row_groups(file.metadata, {"epoch": bounds.epochs, "seq": bounds.seqs}):
            there = _typed(file.read_row_group(group, columns=[*RECORD_ID], use_threads=False))
            rows = there.append_column("row", pa.array(np.arange(there.num_rows)))
            same = rows.join(ids, [*RECORD_ID], join_type="left semi", use_threads=False)["row"].to_numpy()
            if len(same):
                # of many equal payloads one is held
                found = file.read_row_group(group, columns=_STORED_COLUMNS, use_threads=False)
                yield from map(_typed, in_pieces(found.take(pa.array(np.sort(same)))))


def _typed(rows: pa.Table) -> pa.Table:
    return rows.cast(pa.schema([RECORDS.field(name) for name in rows.column_names]))


def _compared(again: pa.Table, stored: pa.Table) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """For each record that came again, whether there are stored ones of its id, and whether one of these equals it."""
    left = again.select([*RECORD_ID]).append_column("here", pa.array(np.arange(again.num_rows)))
    right = stored.select([*RECORD_ID]).append_column("there", pa.array(np.arange(stored.num_rows)))
    pairs = left.join(right, [*RECORD_ID], join_type="inner", use_threads=False)
    here = pairs["here"].to_numpy()
    equal = np.ones(len(here), bool)
    for name in CONTENT:
        one, other = again[name].take(pairs["here"]), stored[name].take(pairs["there"])
        both_null = pc.and_(pc.is_null(one), pc.is_null(other))
        equal &= pc.or_(pc.fill_null(pc.equal(one, other), False), both_null).to_numpy()
    found, same = np.zeros(again.num_rows, bool), np.zeros(again.num_rows, bool)
    found[here], same[here[equal]] = True, True
    return found, same
