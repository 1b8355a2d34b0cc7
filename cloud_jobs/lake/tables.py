"""The Delta tables and the coverage of a lake: created, read as it is or as it was at a moment, and written,
without Spark."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction
from numpy.typing import NDArray
from pyarrow.dataset import FileSystemDataset, ParquetFileFragment
from pyarrow.fs import FileSystem
from pyarrow.parquet import filters_to_expression

from cloud_jobs.errors import LakeError
from cloud_jobs.lake.coverage import Coverage, DeviceStream, TenantDevice, in_order
from cloud_jobs.lake.coverage_log import COVERAGE_DEVICES, CoverageLog, Manifest, from_rows
from cloud_jobs.lake.location import Location, ensure_folder, error_text, sync_files
from cloud_jobs.lake.schemas import PIECE_ROWS, RECORDS, TABLES, WRITTEN_BY, TableSchema
from cloud_jobs.lake.transactions import newest_number, upon_what_is_there

# Files of a lake in a folder are on disk before a commit names them; an object store has them when it says so.


# How many bytes the texts of rows take in memory, and rows in pieces that are bounded by it. Pure, on Arrow.

PIECE_BYTES: Final = 32 << 20
"""The most rows of a piece, and the most bytes of its texts, but for a row that alone has more."""


def is_text(kind: pa.DataType) -> bool:
    """Whether values of a type are texts or bytes of any length, also as a dictionary."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def text_lengths(rows: pa.Table) -> NDArray[np.int64]:
    """How many bytes the texts of each row take together, as if each value stood for itself."""
    lengths = np.zeros(rows.num_rows, np.int64)
    for column in _texts(rows):
        if column.null_count == len(column):
            continue
        at = 0
        for chunk in column.chunks:
            lengths[at : at + len(chunk)] += _lengths(chunk)
            at += len(chunk)
    return lengths


def in_pieces(rows: pa.Table, at_most: int = PIECE_ROWS) -> Iterator[pa.Table]:
    """Rows in their order, in pieces of at most so many rows and PIECE_BYTES."""
    for first in range(0, rows.num_rows, at_most):
        some = rows.slice(first, at_most)
        if sum(map(_at_most, _texts(some))) <= PIECE_BYTES:
            yield some
            continue
        ends, at = np.cumsum(text_lengths(some)), 0
        while at < some.num_rows:
            before = ends[at - 1] if at else 0
            until = max(at + 1, int(np.searchsorted(ends, before + PIECE_BYTES, side="right")))
            yield some.slice(at, until - at)
            at = until


def _texts(rows: pa.Table) -> list[pa.ChunkedArray]:
    return [column for column in rows.columns if is_text(column.type)]


def _at_most(column: pa.ChunkedArray) -> int:
    """What the values of a column cannot exceed; found without looking at each."""
    if not pa.types.is_dictionary(column.type):
        return int(column.nbytes)
    return sum(len(chunk) * (pc.max(pc.binary_length(chunk.dictionary)).as_py() or 0) for chunk in column.chunks)


def _lengths(chunk: pa.Array) -> NDArray[np.int64]:
    if not pa.types.is_dictionary(chunk.type):
        return _filled(pc.binary_length(chunk))
    return _filled(pc.binary_length(chunk.dictionary).take(chunk.indices))


def _filled(lengths: pa.Array) -> NDArray[np.int64]:
    filled: NDArray[np.int64] = pc.fill_null(lengths, 0).to_numpy().astype(np.int64)
    return filled


# Parquet files of the lake's tables, written by executors: sorted, one for each day, and described as Delta has it.

_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_ASCENDING: Final = ("seq", "device_time", "monotonic_us")


class DataFile(NamedTuple):
    """A file that was written: its path in the table's folder, its bytes, its day and, as Delta's JSON, its content."""

    path: str
    size: int
    day: date | None
    stats: str
    written_ms: int

    def add_action(self) -> AddAction:
        """What a commit says of it."""
        folder, _, _ = self.path.rpartition("/")
        column = folder.partition("=")[0]
        day = {column: None if self.day is None else self.day.isoformat()} if folder else {}
        return AddAction(self.path, self.size, day, self.written_ms, True, self.stats)

    @property
    def rows(self) -> int:
        """How many records it holds."""
        return int(json.loads(self.stats)["numRecords"])

    def bounds(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The lowest and the highest value of the columns that have bounds."""
        stats = json.loads(self.stats)
        return stats["minValues"], stats["maxValues"]


def write_data_files(files: FileSystem, rows: pa.Table, now: datetime, *, table: str = "records") -> list[DataFile]:
    """Writes rows, with the columns of a table, into its folder; one file for each day that the table is parted by.

    In each the rows are in the table's order; of equal ones the first that came is first. They are on disk when this
    returns.
    """
    layout = TABLES[table]
    if not rows.num_rows:
        return []
    rows = sorted_rows(rows, table)
    written = [_write(files, table, of_day, day, now) for day, of_day in _by_day(rows, layout)]
    sync_files(files, [file.path for file in written])
    return written


def sorted_rows(rows: pa.Table, table: str) -> pa.Table:
    """Rows in the order of their table."""
    return in_order(rows) if table == "records" else rows.sort_by([(name, "ascending") for name in TABLES[table].order])


def read_data_file(files: FileSystem, file: DataFile) -> pa.Table:
    """The records of a file, with the columns of RECORDS, in their order."""
    rows = pq.read_table(file.path, filesystem=files, partitioning=None).cast(TABLES["records"].in_file)
    day = pa.repeat(pa.scalar(file.day, pa.date32()), rows.num_rows)
    return rows.append_column("device_date", day).select(RECORDS.names).cast(RECORDS)


def day_of(path: str) -> date | None:
    """The day of a file of a table that is parted by days, by its path."""
    value = path.partition("/")[0].partition("=")[2]
    return None if value == _NULL else date.fromisoformat(value)


def _by_day(rows: pa.Table, layout: TableSchema) -> Iterator[tuple[date | None, pa.Table]]:
    if not layout.partition_by:
        yield None, rows
        return
    column = rows[layout.partition_by[0]]
    days = column.unique()
    for day in days:
        is_there = pc.is_null(column) if not day.is_valid else pc.equal(column, day)
        yield day.as_py(), rows if len(days) == 1 else rows.filter(is_there)


def new_path(files: FileSystem, table: str, day: date | None) -> str:
    """A path for a file of a day, whose folder is there. Whoever asks gets one of its own."""
    # also a task that Spark runs again, or twice at once
    path = f"part-{uuid4().hex}.parquet"
    layout = TABLES[table]
    if layout.partition_by:
        folder = f"{layout.partition_by[0]}={_NULL if day is None else day.isoformat()}"
        path = f"{folder}/{path}"
        ensure_folder(files, folder)
    return path


def parquet_options(table: str) -> dict[str, Any]:
    """How the files of a table are encoded: options of `pyarrow.parquet.ParquetWriter`."""
    layout = TABLES[table]
    ascending = [name for name in _ASCENDING if name in layout.schema.names]
    return {
        "compression": "zstd",
        "compression_level": 3,
        "use_dictionary": [name for name in layout.in_file.names if name not in ascending],
        "column_encoding": dict.fromkeys(ascending, "DELTA_BINARY_PACKED"),
        # the rows may come with dictionaries in Arrow, which are nothing that a reader has to have
        "store_schema": False,
    }


def write_row_groups(writer: pq.ParquetWriter, table: str, rows: pa.Table) -> None:
    """Writes rows in groups that a reader can hold: of one device it opens as much of a file at least."""
    at_most = TABLES[table].rows_in_group
    for piece in in_pieces(rows, at_most):
        writer.write_table(piece, row_group_size=at_most)


def statistics(table: str, rows: pa.Table, day: date | None) -> dict[str, Any]:
    """What Delta's log says of rows of one day: their number, and bounds of the table's bounded columns."""
    layout = TABLES[table]
    # a clock far off may be beyond what Delta's readers can parse
    far_off = bool(layout.partition_by) and day is None
    return _stats(rows, [name for name in layout.bounded if not (far_off and name == "device_time")])


def _write(files: FileSystem, table: str, rows: pa.Table, day: date | None, now: datetime) -> DataFile:
    path = new_path(files, table, day)
    in_file = rows.drop_columns([*TABLES[table].partition_by])
    with pq.ParquetWriter(path, in_file.schema, filesystem=files, **parquet_options(table)) as writer:
        write_row_groups(writer, table, in_file)
    size = files.get_file_info(path).size
    return DataFile(path, size, day, json.dumps(statistics(table, rows, day)), _ms(now))


def _stats(rows: pa.Table, bounded: Sequence[str]) -> dict[str, Any]:
    lowest, highest, nulls = {}, {}, {}
    for name in bounded:
        column = rows[name]
        nulls[name] = column.null_count
        if column.null_count < len(column):
            low, high = _extremes(column)
            lowest[name] = _text(low)
            # Delta has milliseconds: rounded away from the rows
            highest[name] = _text(high + timedelta(milliseconds=1) if isinstance(high, datetime) else high)
    return {"numRecords": rows.num_rows, "minValues": lowest, "maxValues": highest, "nullCount": nulls}


def _extremes(column: pa.ChunkedArray) -> tuple[Any, Any]:
    if pa.types.is_dictionary(column.type):
        column = pc.unique(column.combine_chunks()).cast(column.type.value_type)
    found = pc.min_max(column).as_py()
    return found["min"], found["max"]


def _text(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{value.microsecond // 1000:03}Z"
    return value.isoformat() if isinstance(value, date) else value


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


_CONFIGURATION: Final = {
    "delta.checkpointInterval": "50",
    # how far back a bill as of a moment can know the coverage
    "delta.logRetentionDuration": "interval 7 days",
    "delta.deletedFileRetentionDuration": "interval 1 days",
    # each commit would look through the whole log for what is too old: maintenance does
    "delta.enableExpiredLogCleanup": "false",
}
INGEST: Final = "ingest"
"""The name under which commits to the records are numbered: the fence between two ingests."""
QUARANTINED: Final = "quarantined"
"""The name under which commits to the quarantine are numbered: of two ingests at once one looks again."""
COVERS: Final = "covers"
"""Under which name a derived table states the ingest number up to which it covers the records."""
FENCES: Final = "fences"
"""Under which name a derived table states the number of the fences that it was computed with."""
TRACKS: Final = "tracks"
"""Under which name usage states the number of the track settings that it was computed with."""

Condition = tuple[str, str, Any]
"""A column, an operator as `pyarrow.parquet` has it (`=`, `<`, `>=`, `in`), and a value of the column's type."""


@dataclass(frozen=True, slots=True, init=False)
class Lake:
    """The centre's tables, in one location.

    Whatever reads a table raises LakeError if it is missing or damaged, and StoreUnavailable.
    """

    location: Location

    def __init__(self, place: Location | Path) -> None:
        """A path is that of a folder."""
        object.__setattr__(self, "location", place if isinstance(place, Location) else Location.of(place))

    def path(self, table: str) -> str:
        """Where a table is, for delta-rs and for people."""
        return str(self.location / table)

    def create(self) -> None:
        """Makes the tables that are not there yet, and the nullable columns that an earlier version did not know.

        Raises LakeError for a table of another version.
        """
        self.location.create()
        with self.location.errors_named():
            self._create()

    def _create(self) -> None:
        options = self.location.storage_options()
        for name, layout in TABLES.items():
            if not DeltaTable.is_deltatable(self.path(name), options):
                DeltaTable.create(
                    self.path(name),
                    schema=layout.schema,
                    # another job may create it at the same moment
                    mode="ignore",
                    partition_by=[*layout.partition_by],
                    configuration=_CONFIGURATION,
                    storage_options=options,
                )
                continue
            table = self._load(name)
            if new := self._absent_columns(name, table):
                table.alter.add_columns(DeltaSchema.from_arrow(pa.schema(new)).fields)

    def has(self, table: str) -> bool:
        """Whether there is a table of that name, of whatever version. Raises StoreUnavailable."""
        with self.location.errors_named():
            return bool(DeltaTable.is_deltatable(self.path(table), self.location.storage_options()))

    def check(self, *tables: str) -> None:
        """Raises LakeError if one of the tables is missing, or is of another version."""
        for table in tables:
            self.open(table)

    def open(self, table: str, version: int | None = None) -> DeltaTable:
        """A table as it is now, or a version of it. Raises LakeError; DeltaError for a version that is not kept."""
        opened = self._load(table, version)
        self._absent_columns(table, opened)
        return opened

    def rows(
        self,
        table: str,
        columns: Sequence[str] | None = None,
        *,
        where: Sequence[Condition] = (),
    ) -> pa.Table:
        """Rows of a table for which all conditions of `where` hold, in no order.

        A column that the table did not have yet is null.
        """
        with self.damage_as_error(table):
            opened = self.open(table)
            asked = columns or TABLES[table].schema.names
            return _matching(self.dataset(table, opened), asked, where, _in_each_log(table))

    def dataset(self, table: str, opened: DeltaTable) -> FileSystemDataset:
        """The files of a table that was opened; a column that the table did not have yet is null."""
        return opened.to_pyarrow_dataset(filesystem=self.files(table), schema=TABLES[table].schema)

    def files(self, table: str) -> FileSystem:
        """The files in a table's folder."""
        # Arrow's file system, not Delta's: that one is Python, called from Arrow's threads, and a thread that still
        # reads ahead when the process ends, as after an error, aborts it
        return (self.location / table).files()

    @property
    def coverage_log(self) -> CoverageLog:
        """The files of the coverage, beside the tables."""
        return CoverageLog(self.files("coverage"))

    def coverage(self, devices: Collection[TenantDevice] | None = None) -> dict[DeviceStream, Coverage]:
        """What the centre has of the streams of some devices, or of all."""
        return self.coverage_at(self.ingest_commit(), devices)

    def coverage_at(
        self, number: int | None, devices: Collection[TenantDevice] | None = None
    ) -> dict[DeviceStream, Coverage]:
        """What the centre had of the streams as of a commit of the ingest."""
        rows = self.coverage_rows(self.coverage_manifest(number), devices)
        with self.damage_as_error("coverage"):
            return dict(from_rows(rows))

    def devices_changed(self, since: int | None, until: int | None) -> pa.Table | None:
        """The devices (tenant, device) whose coverage may differ between two commits of the ingest; None: any.

        Those of some more where files were merged meanwhile.
        """
        if since == until:
            return COVERAGE_DEVICES.empty_table()
        try:
            before = self.coverage_log.manifest(since)
        # swept
        except (OSError, ValueError):
            return None
        with self.damage_as_error("coverage"):
            return self.coverage_log.devices_of_new_files(before, self.coverage_log.manifest(until))

    def ingest_commit(self) -> int | None:
        """The number of the newest commit of the ingest; None: there is none."""
        with self.damage_as_error("records"):
            return newest_number(self.open("records"), INGEST)

    def coverage_manifest(self, number: int | None) -> Manifest:
        """The files of the coverage as of a commit of the ingest; none as of None."""
        with self.damage_as_error("coverage"):
            return self.coverage_log.manifest(number)

    def coverage_rows(self, manifest: Manifest, devices: Collection[TenantDevice] | None = None) -> pa.Table:
        """One row of coverage for each stream of some devices, or of all."""
        with self.damage_as_error("coverage"):
            return self.coverage_log.rows(manifest, devices)

    def append(self, table: str, rows: list[dict[str, Any]]) -> None:
        """Adds rows to a small table, in one commit. Raises CommitFailed, StoreUnavailable."""
        if not rows:
            return
        made = pa.Table.from_pylist(rows, schema=TABLES[table].schema)
        options = self.location.storage_options()
        with self.location.errors_named():
            path = self.path(table)
            upon_what_is_there(table, lambda: write_deltalake(path, made, mode="append", storage_options=options))

    def _load(self, table: str, version: int | None = None) -> DeltaTable:
        try:
            with self.location.errors_named():
                options = self.location.storage_options()
                return DeltaTable(self.path(table), version=version, storage_options=options)
        except TableNotFoundError as error:
            if not self.location.exists():
                raise LakeError(
                    f"there is no lake {self.location}: no such folder or bucket; `cloud-jobs ingest` makes it, "
                    "and `cloud-jobs usage` takes over into it what was published"
                ) from error
            raise LakeError(
                f"there is no table {table!r} in the lake {self.location}; run `{WRITTEN_BY[table]}`, which writes it"
            ) from error

    def _absent_columns(self, table: str, opened: DeltaTable) -> list[pa.Field]:
        """The nullable columns that a table does not have yet. Raises LakeError for a table of another version.

        Whatever opens a table passes here: rows of another version must not be taken for rows of this one.
        """
        schema = TABLES[table].schema
        there = {field.name: field for field in opened.schema().fields}
        absent = [field for field in schema if field.name not in there]
        unknown = sorted(set(there) - set(schema.names))
        # only a nullable column can be missing in the rows that are there
        lacking = [field.name for field in absent if not field.nullable]
        loose = [
            name for name in there if name not in unknown and there[name].nullable and not schema.field(name).nullable
        ]
        if unknown or lacking or loose:
            wrong = [f"does not know its columns {', '.join(unknown)}"] if unknown else []
            wrong += [f"misses the columns {', '.join(lacking)}"] if lacking else []
            wrong += [f"has no rows without {', '.join(loose)}"] if loose and not wrong else []
            raise LakeError(
                f"table {table} in {self.location} was made by another version: this one {' and '.join(wrong)};"
                " begin with a new lake, or use the version that made this one"
            )
        return absent

    @contextmanager
    def damage_as_error(self, table: str) -> Iterator[None]:
        """What a file of a table that is not as it was written raises is a LakeError."""
        try:
            with self.location.errors_named():
                yield
        except (DeltaError, ValueError, OSError) as error:
            raise LakeError(
                f"table {table!r} of the lake {self.location} cannot be read: {error_text(error)}"
            ) from error


@contextmanager
def row_fault_as_error(table: str, row: dict[str, Any]) -> Iterator[None]:
    """A row that is not what the format says is a LakeError that shows it."""
    try:
        yield
    except (ValueError, TypeError, KeyError) as error:
        raise LakeError(f"table {table!r} holds a row that cannot be read: {row}: {error}") from error


def _in_each_log(table: str) -> set[str]:
    """The columns of which the log has bounds for every file of a table."""
    layout = TABLES[table]
    # a file of device times far off has no bounds of them
    return {*layout.partition_by, *layout.bounded} - {"device_time"}


def _matching(
    dataset: FileSystemDataset, columns: Sequence[str], where: Sequence[Condition], bounded: Collection[str]
) -> pa.Table:
    condition = filters_to_expression([*where]) if where else None
    needed = [*dict.fromkeys((*columns, *(name for name, _, _ in where)))]
    found = [dataset.schema.empty_table().select(columns)]
    # a fragment is a file with what Delta's statistics say of it: one that cannot hold such a row is not opened
    for file in _files_that_may_match(dataset, where, bounded):
        # one file after the other: after an error nothing is still being read, and no more than a file is held
        rows = file.to_table(dataset.schema, columns=needed)
        # The condition is for what was read, which has the dataset's types. A scan that has it also compares it with
        # those in the Parquet file: a merge of delta-rs writes string_view there, for which Arrow has no comparison.
        found.append((rows if condition is None else rows.filter(condition)).select(columns))
    return pa.concat_tables(found)


def _files_that_may_match(
    dataset: FileSystemDataset, where: Sequence[Condition], bounded: Collection[str]
) -> Iterable[ParquetFileFragment]:
    def chosen_by(conditions: Sequence[Condition]) -> dict[str, ParquetFileFragment]:
        found = dataset.get_fragments(filters_to_expression([*conditions]) if conditions else None)
        return {file.path: file for file in found}

    found = chosen_by(where)
    # Where the log has no bounds of a column for a file, Arrow takes it that none of its rows matches.
    if unsure := [name for name, _, _ in where if name not in bounded]:
        for path, file in chosen_by([one for one in where if one[0] in bounded]).items():
            known = str(file.partition_expression)
            if any(f"({name} >= null[" in known for name in unsure):
                found[path] = file
    return found.values()
