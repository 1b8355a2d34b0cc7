"""The driver's side of a micro-batch: deduplicates, commits and counts the parts that executors wrote. Without Spark.

Records and coverage become durable in one step: the commit of the records, whose number names the manifest of the
coverage. Files written before it belong to nothing until then. Later steps are repeated if the messages come again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from enum import StrEnum
from itertools import chain, pairwise
from operator import attrgetter
from struct import pack, unpack
from sys import intern
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog
from deltalake import DeltaTable
from numpy.typing import NDArray
from pyarrow.fs import FileSystem

from cloud_jobs.errors import CommitFailed, LakeError
from cloud_jobs.ingest.parts import (
    RECORD_ID,
    DeduplicationResult,
    QuarantineFile,
    Run,
    WrittenPart,
    commit_quarantine,
    conflict_rows,
    deduplicate,
    write_quarantine,
)
from cloud_jobs.lake.appending import AppendedTable
from cloud_jobs.lake.coverage import Coverage, DeviceStream, in_order, stream_codes
from cloud_jobs.lake.coverage_log import CoverageWriter, Submit, from_rows
from cloud_jobs.lake.data_files import (
    DataFile,
    Range,
    StoredFiles,
    day_of,
    in_pieces,
    read_data_file,
    stored_rows,
    write_data_files,
)
from cloud_jobs.lake.erasures import Erasure, is_erased, read_erasures
from cloud_jobs.lake.schemas import CONTENT, RECORDS, TABLES
from cloud_jobs.lake.tables import INGEST, Lake
from cloud_jobs.lake.transactions import MAX_ATTEMPT_S, counter_of, next_number
from waybill.record import IntervalSet

# Duplicates: filtered again and compared with the stored records.

_CONFLICTS_AT_ONCE: Final = 10_000
"""Conflicts that become rows and one file of the quarantine together."""
_STORED_COLUMNS: Final = [*RECORD_ID, *CONTENT]


class RepeatedPart(NamedTuple):
    """A part with duplicates, and its files. `kept`: the seqs to keep of these streams; of others, all."""

    files: tuple[DataFile, ...]
    kept: Mapping[DeviceStream, IntervalSet]

    def split(self, files: FileSystem) -> tuple[pa.Table, pa.Table]:
        """Its records to keep, and the repeated ones, both sorted."""
        rows = in_order(pa.concat_tables([read_data_file(files, file) for file in self.files]).combine_chunks())
        keep = _kept_rows(rows, self.kept)
        return rows.filter(pa.array(keep)), rows.filter(pa.array(~keep))


class ComparedPart(NamedTuple):
    """A part with duplicates, and the table's files that may hold records with their ids, likely ones first."""

    repeated: RepeatedPart
    stored: tuple[str, ...]
    erasures: tuple[Erasure, ...] = ()


def repeated_parts(
    parts: Sequence[WrittenPart], kept: Mapping[int, Mapping[DeviceStream, IntervalSet]]
) -> list[RepeatedPart]:
    """The parts with duplicates. `kept`: the seqs to keep, from `deduplicate`."""
    return [RepeatedPart(parts[at].files, streams) for at, streams in kept.items()]


def filter_part(files: FileSystem, now: datetime) -> Callable[[RepeatedPart], list[DataFile]]:
    """A function that writes the records to keep of a part into the folder `files` of the table."""

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
    """The parts with duplicates, after the records to keep were committed to `opened`."""
    all_stored, found = StoredFiles.of(opened, "records"), []
    for at, part in zip(kept, repeated_parts(parts, kept), strict=True):
        received = {stream: parts[at].streams[stream][0].received for stream in part.kept}
        names = sorted({stream.device for stream in received})
        epochs = [stream.epoch for stream in received]
        seqs = [bound for one in received.values() for bound in (one.ranges[0][0], one.ranges[-1][1])]
        stored = all_stored.within("device", [(name, name) for name in names])
        stored = stored.between("epoch", min(epochs), max(epochs)).between("seq", min(seqs), max(seqs))
        # an unchanged record is of the same day, so files of other days are mostly not opened
        days = {file.day for file in part.files}
        paths = sorted(stored.paths, key=lambda path: day_of(path) not in days)
        found.append(ComparedPart(part, tuple(paths), tuple(erasures)))
    return found


class Conflicts(NamedTuple):
    """The number of records with other content than the stored one, and the files with them."""

    records: int
    quarantined: tuple[QuarantineFile, ...]


def find_conflicts(lake: Lake, ingest_number: int, now: datetime) -> Callable[[ComparedPart], Conflicts]:
    """A function that finds the conflicts of a part and writes them into files of the quarantine."""

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
    bounds, ids = _bounds_of(again), again.select([*RECORD_ID])
    # an erased record is not looked for, and not in conflict
    found = same = is_erased(repeated, part.erasures).combine_chunks().to_numpy(zero_copy_only=False)
    for path in part.stored:
        # the table has each record once
        if found.all():
            break
        for rows in stored_rows(files, "records", path, _STORED_COLUMNS, bounds):
            places = rows.select([*RECORD_ID]).append_column("row", pa.array(np.arange(rows.num_rows)))
            wanted = places.join(ids, [*RECORD_ID], join_type="left semi", use_threads=False)["row"].to_numpy()
            if len(wanted):
                here = _compared(again, rows.take(pa.array(np.sort(wanted))))
                found, same = found | here[0], same | here[1]
    return again.filter(pa.array(found & ~same))


def _kept_rows(rows: pa.Table, kept: Mapping[DeviceStream, IntervalSet]) -> NDArray[np.bool_]:
    """Which of the sorted rows to keep."""
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


def _bounds_of(rows: pa.Table) -> dict[str, Range]:
    ends = {name: pc.min_max(rows[name].cast(RECORDS.field(name).type)).as_py() for name in RECORD_ID}
    return {name: (found["min"], found["max"]) for name, found in ends.items()}


def _compared(again: pa.Table, stored: pa.Table) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """For each repeated record: whether a stored one has its id, and whether one equals it."""
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


# Coverage of all device streams in memory: 400 MB for a million streams.

_Key = tuple[str, str, int]
_ROWS_AT_ONCE: Final = 50_000
_NUMBERS: Final = ("head", "stated_us", "stated_head", "complete_until_us")
"""The integers of a Coverage, in the order of its fields, which are also columns of its rows."""
_numbers_of: Final = attrgetter(*_NUMBERS)


class KnownCoverage:
    """The committed coverage of all device streams, packed."""

    def __init__(self, rows: pa.Table) -> None:
        self._streams: dict[_Key, bytes | Coverage] = {}
        # in batches, because the temporary objects take more memory than the result
        for batch in rows.to_batches(max_chunksize=_ROWS_AT_ONCE):
            is_plain = pc.equal(pc.list_value_length(batch["reasons"]), 0)
            self._streams |= _packed(batch.filter(is_plain))
            self.update(dict(from_rows(pa.Table.from_batches([batch.filter(pc.invert(is_plain))]))))

    def get(self, stream: DeviceStream) -> Coverage | None:
        found = self._streams.get(stream)
        if found is None or isinstance(found, Coverage):
            return found
        numbers = unpack(f"={len(found) // 8}q", found)
        bounds = numbers[: -len(_NUMBERS)]
        return Coverage(IntervalSet(zip(bounds[::2], bounds[1::2], strict=True)), (), *numbers[-len(_NUMBERS) :])

    def update(self, coverage: Mapping[DeviceStream, Coverage]) -> None:
        for stream, new in coverage.items():
            numbers = [*chain.from_iterable(new.received.ranges), *_numbers_of(new)]
            kept = new if new.tombstones else pack(f"={len(numbers)}q", *numbers)
            self._streams[intern(stream.tenant), stream.device, stream.epoch] = kept

    def __len__(self) -> int:
        return len(self._streams)


def _packed(rows: pa.RecordBatch) -> Iterator[tuple[_Key, bytes]]:
    """Streams without tombstones, as bytes: a million are read in seconds."""
    lengths = np.r_[0, pc.list_value_length(rows["received"]).to_numpy()]
    bounds = rows["received"].flatten().to_numpy().astype("=i8").tobytes()
    numbers = np.column_stack([rows[name].to_numpy() for name in _NUMBERS]).astype("=i8").tobytes()
    width = 8 * len(_NUMBERS)
    # one string object for all streams of a tenant
    tenants = map(intern, rows["tenant"].to_pylist())
    columns = (rows[name].to_pylist() for name in ("device", "epoch"))
    places = pairwise((8 * np.cumsum(lengths)).tolist())
    for at, (stream, (start, end)) in enumerate(zip(zip(tenants, *columns, strict=True), places, strict=True)):
        yield stream, bounds[start:end] + numbers[width * at : width * (at + 1)]


_log = structlog.get_logger("ingest")

_DEVICES_NAMED: Final = 10
_Item = TypeVar("_Item")
_Made = TypeVar("_Made")


class CrashPoint(StrEnum):
    """Points between the writes of a micro-batch, in their order, at which tests kill it."""

    PARTS_WRITTEN = "parts written"
    PARTS_FILTERED = "parts filtered"
    COVERAGE_WRITTEN = "coverage written"
    COMMITTED = "committed"
    QUARANTINED = "quarantined"
    COUNTED = "counted"


class Attempt(NamedTuple):
    """The number that the commit of a micro-batch will have, and when it began."""

    number: int
    now: datetime
    began_s: float

    @property
    def ingest_number(self) -> int:
        return counter_of(self.number)


Counted = Callable[[Mapping[str, Any]], object]
"""Gets the row of `ingest_batches` of a completed micro-batch."""


def ignore_counts(_: Mapping[str, Any]) -> None:
    """Counts nothing."""


def run_here(work: Callable[[_Item], _Made], items: Sequence[_Item]) -> list[_Made]:
    return [work(item) for item in items]


class MicroBatchWriter:
    """Writes micro-batches into the records table as the only ingest. Repeating one changes nothing."""

    def __init__(
        self,
        lake: Lake,
        *,
        run: Run = run_here,
        submit: Submit | None = None,
        reached: Callable[[CrashPoint], None] = lambda _: None,
        counted: Counted = ignore_counts,
    ) -> None:
        """Reads the committed coverage. `reached` is called at each crash point. Raises LakeError."""
        self._lake = lake
        self._run = run
        self._reached, self._counted = reached, counted
        self._files = lake.files("records")
        self._records = AppendedTable(lake, "records", INGEST)
        self._batches = AppendedTable(lake, "ingest_batches", INGEST)
        number = self._records.number
        if number is None and self._records.opened().file_uris():
            raise LakeError(
                f"the records in {lake.location} were not written by the ingest: their coverage is not known"
            )
        manifest = lake.coverage_manifest(number)
        self._known = KnownCoverage(lake.coverage_rows(manifest))
        self._coverage = CoverageWriter(lake.coverage_log, manifest, submit or _in_a_thread())

    @property
    def records_version(self) -> int:
        return self._records.version

    def begin(self) -> Attempt:
        """The next attempt; its parts are written afterwards."""
        return Attempt(next_number(self._coverage.manifest.number), datetime.now(UTC), time.monotonic())

    def write(self, attempt: Attempt, parts: Sequence[WrittenPart]) -> None:
        """Commits parts and counts them. Raises Fenced, CommitFailed, LakeError."""
        self._reached(CrashPoint.PARTS_WRITTEN)
        streams = [stream for at, part in enumerate(parts) for stream in part.stream_parts(at)]
        result = deduplicate(self._known.get, streams)
        files = self._filter(attempt, parts, result)
        self._commit(attempt, files, result)
        conflicts = self._conflicts(attempt, parts, result)
        written = [file for part in parts for file in part.quarantined]
        written += [file for found in conflicts for file in found.quarantined]
        commit_quarantine(self._lake, written, self._run, attempt.ingest_number, attempt.now)
        self._reached(CrashPoint.QUARANTINED)
        counted = {
            "messages": sum(part.messages for part in parts),
            "malformed": sum(part.malformed for part in parts),
            "conflicts": sum(found.records for found in conflicts),
            "far_off": sum(file.rows for file in files if file.day is None),
            **_counted_by_name(parts),
        }
        self._count(attempt, result, counted)
        self._reached(CrashPoint.COUNTED)

    def _filter(self, attempt: Attempt, parts: Sequence[WrittenPart], result: DeduplicationResult) -> list[DataFile]:
        """The files to commit, without duplicates."""
        files = [file for at, part in enumerate(parts) if at not in result.kept for file in part.files]
        if result.kept:
            repeated = repeated_parts(parts, result.kept)
            for written in self._run(filter_part(self._files, attempt.now), repeated):
                files += written
        self._reached(CrashPoint.PARTS_FILTERED)
        return files

    def _conflicts(
        self, attempt: Attempt, parts: Sequence[WrittenPart], result: DeduplicationResult
    ) -> Sequence[Conflicts]:
        if not result.kept:
            return []
        # after the commit: nobody waits for it, and the table then has all records to compare with
        compared = compared_parts(self._records.opened(), parts, result.kept, read_erasures(self._lake))
        return self._run(find_conflicts(self._lake, attempt.ingest_number, attempt.now), compared)

    def _commit(self, attempt: Attempt, files: Sequence[DataFile], result: DeduplicationResult) -> None:
        assert sum(file.rows for file in files) == result.accepted_count, "what is let in is what is written"
        # by both clocks: one can be set back, the other stops while the machine sleeps
        if max((datetime.now(UTC) - attempt.now).total_seconds(), time.monotonic() - attempt.began_s) > MAX_ATTEMPT_S:
            # its files may have been swept up, and a commit must not name missing files
            raise CommitFailed("records", f"the micro-batch took longer than {MAX_ATTEMPT_S:g} s")
        manifest = self._coverage.prepare(attempt.number, result.delta)
        self._reached(CrashPoint.COVERAGE_WRITTEN)
        # also without files: an overtaken ingest must stop, and coverage may have changed
        self._records.commit(files, attempt.number)
        self._coverage.committed(manifest)
        # after the commit: a record counted as received without being in the table would be dropped when it comes again
        self._known.update(result.coverage)
        self._reached(CrashPoint.COMMITTED)

    def _count(self, attempt: Attempt, result: DeduplicationResult, counted: dict[str, int]) -> None:
        accepted, duplicates = result.accepted_count, result.duplicate_count
        row: dict[str, Any] = counted | {
            "ingest_number": attempt.ingest_number,
            "records": accepted + duplicates,
            "accepted": accepted,
            "duplicates": duplicates,
            "seconds": time.monotonic() - attempt.began_s,
        }
        _log.info("micro-batch", **row)
        now = datetime.now(UTC)
        rows = pa.Table.from_pylist([row | {"committed_at": now}], schema=TABLES["ingest_batches"].schema)
        files = write_data_files(self._lake.files("ingest_batches"), rows, now, table="ingest_batches")
        self._batches.commit(files, attempt.number)
        self._counted(row)


def _counted_by_name(parts: Sequence[WrittenPart]) -> dict[str, Any]:
    """Ignored statements by region, and unreadable messages by device, the most first."""
    disbelieved = sum((part.disbelieved for part in parts), Counter[str]())
    unreadable = sum((part.unreadable for part in parts), Counter[str]())
    return {
        "disbelieved": disbelieved.total(),
        "clocks_ahead": ", ".join(sorted(disbelieved)),
        "unreadable": unreadable.total(),
        "unreadable_of": ", ".join(f"{device} {count}" for device, count in unreadable.most_common(_DEVICES_NAMED)),
    }


def _in_a_thread() -> Submit:
    # a large merge of coverage files is not waited for
    threads = ThreadPoolExecutor(1, "coverage-merge")
    return threads.submit
