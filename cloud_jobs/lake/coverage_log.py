"""The centre's coverage as a log of immutable files, to which each commit of the ingest adds.

A manifest lists the files that make up the coverage as of one commit of the ingest, and is named by the number of that
commit. It is written before the commit. The manifest of a failed attempt has a number that was never committed, so
nobody opens it.

Files are merged in levels: manifests stay short, and each row is rewritten once per level.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from itertools import groupby
from typing import Any, Final, NamedTuple
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow.fs import FileSelector, FileSystem

from cloud_jobs.lake.coverage import Coverage, DeviceStream, TenantDevice, stream_codes
from cloud_jobs.lake.location import ensure_folder, sync_files
from cloud_jobs.lake.transactions import MAX_ATTEMPT_S, counter_of
from waybill.record import IntervalSet, Tombstone

# Coverage as file rows, and the union of many. Pure, on Arrow.

Integers = NDArray[np.int64]

COVERAGE_ROWS = pa.schema(
    [
        pa.field("tenant", pa.string(), nullable=False),
        pa.field("device", pa.string(), nullable=False),
        pa.field("epoch", pa.int64(), nullable=False),
        pa.field("head", pa.int64(), nullable=False),
        pa.field("stated_us", pa.int64(), nullable=False),
        pa.field("stated_head", pa.int64(), nullable=False),
        pa.field("complete_until_us", pa.int64(), nullable=False),
        pa.field("received", pa.list_(pa.int64()), nullable=False),
        pa.field("lost", pa.list_(pa.int64()), nullable=False),
        pa.field("reasons", pa.list_(pa.string()), nullable=False),
    ]
)
"""Coverage of a device stream. `received`: first, last, first, last, ..., disjoint and ascending; `lost`: the same of
its tombstones, with one of `reasons` each. The other columns: see Coverage."""
COVERAGE_DEVICES = pa.schema([COVERAGE_ROWS.field(name) for name in ("tenant", "device")])
"""The devices of coverage rows."""


def to_rows(known: Mapping[DeviceStream, Coverage]) -> pa.Table:
    """One row for each device stream, sorted."""
    streams = sorted(known)
    coverages = [known[stream] for stream in streams]
    columns = {
        "tenant": [stream.tenant for stream in streams],
        "device": [stream.device for stream in streams],
        "epoch": [stream.epoch for stream in streams],
        "head": [coverage.head for coverage in coverages],
        "stated_us": [coverage.stated_us for coverage in coverages],
        "stated_head": [coverage.stated_head for coverage in coverages],
        "complete_until_us": [coverage.complete_until_us for coverage in coverages],
        "received": [[bound for bounds in coverage.received.ranges for bound in bounds] for coverage in coverages],
        "lost": [[bound for tombstone in coverage.tombstones for bound in tombstone[:2]] for coverage in coverages],
        "reasons": [[tombstone.reason for tombstone in coverage.tombstones] for coverage in coverages],
    }
    return pa.table(columns, schema=COVERAGE_ROWS)


def from_rows(rows: pa.Table) -> Iterator[tuple[DeviceStream, Coverage]]:
    for batch in rows.to_batches(max_chunksize=10_000):
        for row in batch.to_pylist():
            received, lost = row["received"], row["lost"]
            tombstones = zip(lost[::2], lost[1::2], row["reasons"], strict=True)
            yield (
                DeviceStream(row["tenant"], row["device"], row["epoch"]),
                Coverage(
                    IntervalSet(zip(received[::2], received[1::2], strict=True)),
                    tuple(Tombstone(*one) for one in tombstones),
                    row["head"],
                    row["stated_us"],
                    row["stated_head"],
                    row["complete_until_us"],
                ),
            )


def unite(tables: Iterable[pa.Table]) -> pa.Table:
    """One row for each device stream: the union of its rows, sorted.

    If a tombstone has two reasons, the one in the earlier table stays.
    """
    rows = pa.concat_tables([COVERAGE_ROWS.empty_table(), *tables]).combine_chunks()
    code = stream_codes(rows)
    if not len(code):
        return rows
    order = np.argsort(code, kind="stable")
    rows, code = rows.take(pa.array(order)).combine_chunks(), code[order]
    starts = np.flatnonzero(np.r_[True, code[1:] != code[:-1]])
    if len(starts) == len(code):
        return rows
    # below, the index in the result stands for a device stream
    stream = np.repeat(np.arange(len(starts)), np.diff(np.r_[starts, len(code)]))
    first_rows = rows.select(["tenant", "device", "epoch"]).take(pa.array(starts))
    lost, reasons = _united_tombstones(rows, stream, len(starts))
    stated_us, stated_head = _latest_statements(rows, stream, starts)
    columns = {
        "tenant": first_rows["tenant"],
        "device": first_rows["device"],
        "epoch": first_rows["epoch"],
        "head": np.maximum.reduceat(rows["head"].to_numpy(), starts),
        "stated_us": stated_us,
        "stated_head": stated_head,
        "complete_until_us": np.maximum.reduceat(rows["complete_until_us"].to_numpy(), starts),
        "received": _united_ranges(_list_column(rows, "received"), stream, len(starts)),
        "lost": lost,
        "reasons": reasons,
    }
    return pa.table(columns, schema=COVERAGE_ROWS)


def _latest_statements(rows: pa.Table, stream: Integers, starts: Integers) -> tuple[Integers, Integers]:
    """(stated_us, stated_head) of the latest statement of each stream; of two at one moment, the higher head."""
    stated_us, heads = rows["stated_us"].to_numpy(), rows["stated_head"].to_numpy()
    latest_us = np.maximum.reduceat(stated_us, starts)
    return latest_us, np.maximum.reduceat(np.where(stated_us == latest_us[stream], heads, 0), starts)


def _list_column(rows: pa.Table, name: str) -> pa.ListArray:
    column = rows[name].combine_chunks()
    return column.chunk(0) if isinstance(column, pa.ChunkedArray) else column


def _lengths(lists: pa.ListArray) -> Integers:
    lengths: Integers = lists.value_lengths().to_numpy().astype(np.int64)
    return lengths


def _lists(lengths: Integers, values: pa.Array) -> pa.ListArray:
    offsets = np.r_[0, np.cumsum(lengths)].astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values)


def _united_ranges(lists: pa.ListArray, stream: Integers, count: int) -> pa.ListArray:
    of = np.repeat(stream, _lengths(lists) // 2)
    bounds = lists.flatten().to_numpy()
    first, last = bounds[::2], bounds[1::2]
    order = np.lexsort((first, of))
    of, first = of[order], first[order]
    last = _highest_so_far(last[order], of)
    begins = np.ones(len(first), bool)
    # neighbours become one range, as in an IntervalSet
    begins[1:] = (of[1:] != of[:-1]) | (first[1:] - 1 > last[:-1])
    at = np.flatnonzero(begins)
    ends = np.r_[at[1:], len(first)] - 1 if len(at) else at
    joined = np.column_stack([first[at], last[ends]]).ravel()
    return _lists(np.bincount(of[at], minlength=count) * 2, pa.array(joined, pa.int64()))


def _highest_so_far(values: Integers, group: Integers) -> Integers:
    """The running maximum of values within each group; groups are contiguous and ascending."""
    if not len(values):
        return values
    by_value = np.argsort(values, kind="stable")
    rank = np.empty(len(values), np.int64)
    rank[by_value] = np.arange(len(values))
    # ranks, not the values themselves: with the group in front those would not fit into 64 bits
    highest = np.maximum.accumulate(group * len(values) + rank) - group * len(values)
    found: Integers = values[by_value][highest]
    return found


def _united_tombstones(rows: pa.Table, stream: Integers, count: int) -> tuple[pa.ListArray, pa.ListArray]:
    found: dict[int, Coverage] = {}
    having = np.flatnonzero(_lengths(_list_column(rows, "reasons")))
    for at, (_, coverage) in zip(having.tolist(), from_rows(rows.take(pa.array(having))), strict=True):
        place = int(stream[at])
        found[place] = found.get(place, Coverage()) | Coverage(tombstones=coverage.tombstones)
    lengths = np.zeros(count, np.int64)
    tombstones: list[Tombstone] = []
    for place, coverage in sorted(found.items()):
        lengths[place] = len(coverage.tombstones)
        tombstones.extend(coverage.tombstones)
    bounds = [bound for tombstone in tombstones for bound in tombstone[:2]]
    return _lists(lengths * 2, pa.array(bounds, pa.int64())), _lists(
        lengths, pa.array([tombstone.reason for tombstone in tombstones], pa.string())
    )


FORMAT: Final = 3
MERGED_FILES: Final = 8
"""Files of one level that are merged into one of the next."""
_MERGED_AT_ONCE: Final = 50_000
"""Merges with more rows run in the background."""
_ROW_GROUP: Final = 1 << 14
_MANIFESTS: Final = "manifests"
_MANIFEST: Final = re.compile(rf"{_MANIFESTS}/[0-9a-f]{{16}}\.json")
_ROWS: Final = "rows"


class CoverageFile(NamedTuple):
    """A file of coverage rows. `level`: how often its rows were merged."""

    path: str
    rows: int
    level: int


class Manifest(NamedTuple):
    """The coverage files as of a commit of the ingest, the oldest first; the coverage is their union."""

    number: int | None
    files: tuple[CoverageFile, ...]


EMPTY: Final = Manifest(None, ())


Submit = Callable[[Callable[[], CoverageFile]], Future[CoverageFile]]
"""Runs a merge in the background, as `Executor.submit`."""


class _PendingMerge(NamedTuple):
    files: tuple[CoverageFile, ...]
    outcome: Future[CoverageFile]


class CoverageLog:
    """The log in its own folder. Raises OSError, and ValueError for files in another format."""

    def __init__(self, files: FileSystem) -> None:
        self._files = files

    def manifest(self, number: int | None) -> Manifest:
        """The manifest of a commit; empty if `number` is None, before the first commit."""
        if number is None:
            return EMPTY
        with self._files.open_input_file(_manifest_path(number)) as file:
            document = json.loads(file.read())
        if not isinstance(document, dict) or (document.get("format"), document.get("number")) != (FORMAT, number):
            raise ValueError(f"{_manifest_path(number)} is not a manifest of format {FORMAT} and of that number")
        return Manifest(number, tuple(CoverageFile(*file) for file in document["files"]))

    def sizes(self, manifest: Manifest) -> tuple[int | None, ...]:
        """The size of each file of a manifest; None if it is missing."""
        found = self._files.get_file_info([file.path for file in manifest.files])
        return tuple(info.size if info.is_file else None for info in found)

    def rows(self, manifest: Manifest, devices: Collection[TenantDevice] | None = None) -> pa.Table:
        """One row for each stream of some devices, or of all, sorted."""
        wanted = None if devices is None else _of(devices)
        if devices is not None and not devices:
            return COVERAGE_ROWS.empty_table()
        return unite(
            pq.read_table(file.path, filesystem=self._files, filters=wanted, partitioning=None).cast(COVERAGE_ROWS)
            for file in manifest.files
        )

    def devices_of_new_files(self, before: Manifest, manifest: Manifest) -> pa.Table:
        """The devices in files of a manifest that an earlier one did not have."""
        names = [*COVERAGE_DEVICES.names]
        parts = (
            pq.read_table(file.path, filesystem=self._files, columns=names, partitioning=None).cast(COVERAGE_DEVICES)
            for file in manifest.files
            if file not in before.files
        )
        return pa.concat_tables([COVERAGE_DEVICES.empty_table(), *parts])

    def write(self, rows: pa.Table, level: int) -> CoverageFile:
        path = f"{_ROWS}/level-{level}-{uuid4().hex}.parquet"
        ensure_folder(self._files, _ROWS)
        pq.write_table(
            rows, path, filesystem=self._files, compression="zstd", row_group_size=_ROW_GROUP, store_schema=False
        )
        sync_files(self._files, [path])
        return CoverageFile(path, rows.num_rows, level)

    def write_manifest(self, manifest: Manifest) -> None:
        """Writes the manifest durably; then its number may be committed."""
        assert manifest.number is not None, "only a commit has a manifest"
        document = {"format": FORMAT, "number": manifest.number, "files": manifest.files}
        ensure_folder(self._files, _MANIFESTS)
        with self._files.open_output_stream(_manifest_path(manifest.number)) as file:
            file.write(json.dumps(document, separators=(",", ":")).encode())
        sync_files(self._files, [_manifest_path(manifest.number)])

    def merge(self, files: Iterable[CoverageFile]) -> CoverageFile:
        """Merges files of one level into one file of the next."""
        merged = [*files]
        return self.write(self.rows(Manifest(None, tuple(merged))), merged[0].level + 1)

    def seconds_between(self, one: CoverageFile, other: CoverageFile) -> float | None:
        """Seconds between the writing of two files, by the store's clock; None if one is missing."""
        found = self._files.get_file_info([one.path, other.path])
        if not all(info.is_file for info in found):
            return None
        return float(found[1].mtime.timestamp() - found[0].mtime.timestamp())

    def sweep(self, newest: int, needed_since_s: float, older_than_s: float, kept: Collection[int] = ()) -> int:
        """Deletes files that no commit in use needs, and returns their number.

        Raises ValueError, OSError for an unreadable manifest that is in use, and then deletes nothing.

        `newest`: the number of the newest commit. `kept`: commits whose coverage is needed for ever. `needed_since_s`:
        from this moment (since 1970) on the coverage may be asked for. `older_than_s`: earlier; attempts that began
        before it can no longer be committed. Both are compared with file times.
        """
        old = {info.path for info in self._listed(_ROWS) if info.mtime.timestamp() < older_than_s}
        manifests = {
            info.path: info.mtime.timestamp() for info in self._listed(_MANIFESTS) if _MANIFEST.fullmatch(info.path)
        }
        for_ever = {_manifest_path(number) for number in kept} & manifests.keys()
        in_use = _in_use(manifests, newest, needed_since_s) | for_ever
        gone = {path for path, mtime in manifests.items() if path not in in_use and mtime < older_than_s}
        # a merged file is never listed again, so an old file that is needed later is in a manifest in use now
        sure = for_ever | {_manifest_path(newest)}
        needed = {file for path in in_use for file in self._files_of(path, is_there=path in sure)} if old else set()
        # manifests first, so that no manifest lists a deleted file
        for path in [*sorted(gone), *sorted(old - needed)]:
            # another sweep may have been faster
            with suppress(FileNotFoundError):
                self._files.delete_file(path)
        return len(gone) + len(old - needed)

    def _files_of(self, path: str, *, is_there: bool) -> list[str]:
        """The files of a manifest; none if it is incomplete or gone, unless it must be there."""
        try:
            return [file.path for file in self.manifest(_number_of(path)).files]
        except (json.JSONDecodeError, FileNotFoundError):
            if is_there:
                raise
            return []

    def _listed(self, folder: str) -> list[Any]:
        found = self._files.get_file_info(FileSelector(folder, allow_not_found=True))
        return [info for info in found if info.is_file]


class CoverageWriter:
    """The only writer of the log. It knows what is committed, and runs merges in the background."""

    def __init__(self, log: CoverageLog, manifest: Manifest, submit: Submit) -> None:
        self._log = log
        self._submit = submit
        self._pending: _PendingMerge | None = None
        self.manifest = manifest

    def prepare(self, number: int, delta: Mapping[DeviceStream, Coverage]) -> Manifest:
        """Writes new coverage, and the manifest of the commit that follows."""
        files = self.manifest.files
        if delta:
            new = self._log.write(to_rows(delta), level=0)
            files = self._merged((*self._with_pending_merge(files, new), new))
        prepared = Manifest(number, files)
        self._log.write_manifest(prepared)
        return prepared

    def committed(self, manifest: Manifest) -> None:
        """Takes over a manifest after its commit was made."""
        self.manifest = manifest

    def _with_pending_merge(self, files: tuple[CoverageFile, ...], new: CoverageFile) -> tuple[CoverageFile, ...]:
        """The files, with the result of a finished merge; `new` was written just now."""
        if self._pending is None or not self._pending.outcome.done():
            return files
        pending, self._pending = self._pending, None
        merged = pending.outcome.result()
        # a sweep may delete the file while no manifest names it; then the merge is repeated
        age_s = self._log.seconds_between(merged, new)
        return files if age_s is None or age_s > MAX_ATTEMPT_S else _replaced(files, pending.files, merged)

    def _merged(self, files: tuple[CoverageFile, ...]) -> tuple[CoverageFile, ...]:
        busy = set(self._pending.files) if self._pending else set()
        while due := due_merge(files, busy):
            if sum(file.rows for file in due) > _MERGED_AT_ONCE:
                # one at a time: meanwhile its level only gets longer
                if self._pending is None:
                    self._pending = _PendingMerge(due, self._submit(partial(self._log.merge, due)))
                return files
            files = _replaced(files, due, self._log.merge(due))
        return files


def due_merge(files: Iterable[CoverageFile], busy: Collection[CoverageFile] = ()) -> tuple[CoverageFile, ...]:
    """The oldest files of the lowest level that has enough contiguous files; none if there is no such level."""
    runs = [
        tuple(run) for (_, is_busy), run in groupby(files, key=lambda file: (file.level, file in busy)) if not is_busy
    ]
    long = [run[:MERGED_FILES] for run in runs if len(run) >= MERGED_FILES]
    return min(long, key=lambda run: run[0].level, default=())


def _of(devices: Collection[TenantDevice]) -> list[list[tuple[str, str, Any]]]:
    named: dict[str, list[str]] = {}
    for tenant, device in sorted(devices):
        named.setdefault(tenant, []).append(device)
    # bounds select the row groups
    bounds = {tenant: [("device", ">=", names[0]), ("device", "<=", names[-1])] for tenant, names in named.items()}
    return [[("tenant", "=", tenant), *bounds[tenant], ("device", "in", names)] for tenant, names in named.items()]


def _replaced(
    files: tuple[CoverageFile, ...], merged: tuple[CoverageFile, ...], by: CoverageFile
) -> tuple[CoverageFile, ...]:
    """Puts the merged file in the place of its inputs; the order decides which reason of a tombstone stays."""
    at = files.index(merged[0])
    assert files[at : at + len(merged)] == merged, "files of a level stand together, the oldest first"
    return (*files[:at], by, *files[at + len(merged) :])


def _in_use(manifests: Mapping[str, float], newest: int, since_s: float) -> set[str]:
    """The manifests that may have been in force since a moment, and the newest; all, if none is that old.

    Each attempt writes one, and attempts follow commits, so one of the last two numbers was in force.
    """
    counters = {path: counter_of(_number_of(path)) for path in manifests}
    before = [counters[path] for path, mtime in manifests.items() if mtime < since_s]
    last = max((counter for counter in before if counter <= counter_of(newest)), default=None)
    steps = {*counters.values()} if last is None else {last - 1, last}
    return {_manifest_path(newest)} | {path for path, counter in counters.items() if counter in steps}


def _manifest_path(number: int) -> str:
    return f"{_MANIFESTS}/{number:016x}.json"


def _number_of(path: str) -> int:
    return int(path.rsplit("/", 1)[-1].removesuffix(".json"), 16)
