"""The lake: opening, creating and reading its tables, and the time of its store."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyarrow.fs import FileSystem
from pyarrow.parquet import filters_to_expression

from cloud_jobs.errors import ClockError, LakeError
from cloud_jobs.lake.coverage import Coverage, DeviceStream, TenantDevice
from cloud_jobs.lake.coverage_log import COVERAGE_DEVICES, CoverageLog, Manifest, from_rows
from cloud_jobs.lake.data_files import Range, StoredFiles, read_stored
from cloud_jobs.lake.descriptions import DESCRIPTIONS, described_schema
from cloud_jobs.lake.location import Location, error_text
from cloud_jobs.lake.schemas import TABLES, WRITTEN_BY
from cloud_jobs.lake.transactions import newest_number, upon_what_is_there

_CONFIGURATION: Final = {
    "delta.checkpointInterval": "50",
    "delta.logRetentionDuration": "interval 7 days",
    "delta.deletedFileRetentionDuration": "interval 1 days",
    # maintenance does it; each commit would list the whole log
    "delta.enableExpiredLogCleanup": "false",
}
INGEST: Final = "ingest"
"""The writer of the records, by which a second ingest is fenced off."""
QUARANTINED: Final = "quarantined"
"""The writer of the quarantine; of two ingests at once, one repeats its commit."""
COVERS: Final = "covers"
"""A derived table states the ingest number up to which it covers the records under this name."""
FENCES: Final = "fences"
"""A derived table states the number of its fences under this name."""
KEPT_FROM: Final = "kept_from"
"""A table states the first day (its ordinal) whose rows the retention has not erased, before it erases any."""
TRACKS: Final = "tracks"
"""Usage states the number of its track settings under this name."""

_FILES_AT_ONCE: Final = 8

Condition = tuple[str, str, Any]
"""A column, an operator as `pyarrow.parquet` has it (`=`, `<`, `>=`, `in`), and a value of the column's type."""


@dataclass(frozen=True, slots=True, init=False)
class Lake:
    """The centre's tables in one location.

    Reading methods raise LakeError for a missing or damaged table, and StoreUnavailable.
    """

    location: Location

    def __init__(self, place: Location | Path) -> None:
        object.__setattr__(self, "location", place if isinstance(place, Location) else Location.of(place))

    def path(self, table: str) -> str:
        return str(self.location / table)

    def create(self) -> None:
        """Makes the tables that are not there yet. Raises LakeError for a table of another version, and if only
        `reference` is gone.
        """
        self.location.create()
        options = self.location.storage_options()
        with self.location.errors_named():
            # without contracts, all payers that were closed before would owe nothing
            if not self.has("reference") and self.has("closings") and self.open("closings").version():
                raise LakeError(
                    f"the lake {self.location} has closings, but no table 'reference' with their contracts; restore "
                    "all tables from one copy"
                )
            for name, layout in TABLES.items():
                if DeltaTable.is_deltatable(self.path(name), options):
                    self.open(name)
                    continue
                DeltaTable.create(
                    self.path(name),
                    schema=described_schema(name),
                    description=DESCRIPTIONS[name].row,
                    # another job may create it at the same moment
                    mode="ignore",
                    partition_by=[*layout.partition_by],
                    configuration=_CONFIGURATION,
                    storage_options=options,
                )

    def has(self, table: str) -> bool:
        """Whether the table exists, in any version. Raises StoreUnavailable."""
        with self.location.errors_named():
            return bool(DeltaTable.is_deltatable(self.path(table), self.location.storage_options()))

    def check(self, *tables: str) -> None:
        """Raises LakeError if a table is missing or was made by another version."""
        for table in tables:
            self.open(table)

    def open(self, table: str, version: int | None = None) -> DeltaTable:
        """The current table, or one of its versions. Raises LakeError; DeltaError for a version that is gone."""
        try:
            with self.location.errors_named():
                options = self.location.storage_options()
                opened = DeltaTable(self.path(table), version=version, storage_options=options)
        except TableNotFoundError as error:
            if not self.location.exists():
                raise LakeError(
                    f"there is no lake {self.location}: no such folder or bucket; `cloud-jobs ingest` creates it, "
                    "and `cloud-jobs usage` copies publications into it"
                ) from error
            raise LakeError(
                f"there is no table {table!r} in the lake {self.location}; run `{WRITTEN_BY[table]}`, which writes it"
            ) from error
        except DeltaError as error:
            if version is not None:
                raise
            raise LakeError(
                f"table {table!r} in {self.location} cannot be read: {error_text(error)}; restore it from a copy"
            ) from error
        # rows of another version must not be taken for rows of this one
        columns = {(field.name, field.nullable) for field in opened.schema().fields}
        if different := sorted(
            {name for name, _ in columns ^ {(one.name, one.nullable) for one in TABLES[table].schema}}
        ):
            raise LakeError(
                f"table {table} in {self.location} was written by another version: its columns {', '.join(different)} "
                "differ; begin with a new lake, or use the version that wrote this one"
            )
        return opened

    def rows(
        self,
        table: str,
        columns: Sequence[str] | None = None,
        *,
        where: Sequence[Condition] = (),
        opened: DeltaTable | None = None,
    ) -> pa.Table:
        """Rows of a table or of an opened version; files that cannot hold such rows are not opened."""
        with self.damage_as_error(table):
            stored = StoredFiles.of(opened or self.open(table), table)
        return self.rows_in(stored, columns, where=where)[0]

    def rows_in(
        self, stored: StoredFiles, columns: Sequence[str] | None = None, *, where: Sequence[Condition] = ()
    ) -> tuple[pa.Table, int]:
        """Rows of some files of a table, and the number of files that were opened for them."""
        table, schema, ranges = stored.table, TABLES[stored.table].schema, dict[str, Range]()
        schema = pa.schema([schema.field(name) for name in columns or schema.names])
        asked = [*dict.fromkeys((*schema.names, *(name for name, _, _ in where)))]
        for name, compared, value in where:
            ranges[name] = _both(ranges.get(name, (None, None)), _range_of(compared, value))
        with self.damage_as_error(table):
            files, paths = self.files(table), stored.meeting(ranges).paths
            with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
                parts = [*pool.map(lambda path: read_stored(files, table, path, asked, ranges), paths)]
        whole = TABLES[table].schema.empty_table().select(asked)
        rows = pa.concat_tables([whole, *(part.cast(whole.schema) for part in parts)])
        return (rows.filter(filters_to_expression([*where])) if where else rows).select(schema.names), len(paths)

    def files(self, table: str) -> FileSystem:
        # not Delta's file system: it is Python called from Arrow's threads, and a thread that still reads ahead at the
        # end of the process aborts it
        return (self.location / table).files()

    @property
    def coverage_log(self) -> CoverageLog:
        return CoverageLog(self.files("coverage"))

    def coverage(self, devices: Collection[TenantDevice] | None = None) -> dict[DeviceStream, Coverage]:
        return self.coverage_at(self.ingest_commit(), devices)

    def coverage_at(
        self, number: int | None, devices: Collection[TenantDevice] | None = None
    ) -> dict[DeviceStream, Coverage]:
        rows = self.coverage_rows(self.coverage_manifest(number), devices)
        with self.damage_as_error("coverage"):
            return dict(from_rows(rows))

    def devices_changed(self, since: int | None, until: int | None) -> pa.Table | None:
        """The devices whose coverage may differ between two commits of the ingest; None: all may."""
        if since == until:
            return COVERAGE_DEVICES.empty_table()
        try:
            before = self.coverage_log.manifest(since)
        # the manifest was swept
        except (OSError, ValueError):
            return None
        with self.damage_as_error("coverage"):
            return self.coverage_log.devices_of_new_files(before, self.coverage_log.manifest(until))

    def ingest_commit(self) -> int | None:
        with self.damage_as_error("records"):
            return newest_number(self.open("records"), INGEST)

    def coverage_manifest(self, number: int | None) -> Manifest:
        with self.damage_as_error("coverage"):
            return self.coverage_log.manifest(number)

    def coverage_rows(self, manifest: Manifest, devices: Collection[TenantDevice] | None = None) -> pa.Table:
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

    @contextmanager
    def damage_as_error(self, table: str) -> Iterator[None]:
        """Turns what a damaged file raises into LakeError."""
        try:
            with self.location.errors_named():
                yield
        except (DeltaError, ValueError, OSError) as error:
            raise LakeError(
                f"table {table!r} of the lake {self.location} cannot be read: {error_text(error)}"
            ) from error


@contextmanager
def row_fault_as_error(table: str, row: dict[str, Any]) -> Iterator[None]:
    """Turns the error of a malformed row into a LakeError that shows it."""
    try:
        yield
    except (ValueError, TypeError, KeyError) as error:
        raise LakeError(f"table {table!r} holds a row that cannot be read: {row}: {error}") from error


def _both(one: Range, other: Range) -> Range:
    """The range within both."""
    lows, highs = ([end for end in ends if end is not None] for ends in zip(one, other, strict=True))
    return max(lows, default=None), min(highs, default=None)


def _range_of(compared: str, value: Any) -> Range:
    match compared:
        case "=":
            return value, value
        case "in":
            known = sorted(value.to_pylist() if isinstance(value, pa.Array) else value)
            return (known[0], known[-1]) if known else (None, None)
        case ">" | ">=":
            return value, None
        case "<" | "<=":
            return None, value
    raise ValueError(f"no condition: {compared!r}")


# The clock of the lake's store, which sets the age of files.

MAX_SKEW: Final = timedelta(minutes=5)
"""The most that the clock of a machine may differ from that of the store."""


def store_time(lake: Lake) -> datetime:
    """The store's time: that of a file written now. Raises LakeError, StoreUnavailable."""
    lake.check("records")
    files, path = lake.location.files(), f"clock-{uuid4().hex}"
    try:
        with lake.location.errors_named():
            with files.open_output_stream(path) as file:
                file.write(b"what time it is")
            written: datetime = files.get_file_info(path).mtime
            files.delete_file(path)
    except OSError as error:
        # a full disk, or no right to write
        raise LakeError(f"nothing can be written into the lake {lake.location}: {error_text(error)}") from error
    return written.astimezone(UTC)


def check_clock(now: datetime, stored: datetime) -> None:
    """Raises ClockError if this machine's clock differs from the store's."""
    if abs(now - stored) > MAX_SKEW:
        raise ClockError(
            f"this machine's clock says {now.isoformat(timespec='seconds')}, that of the lake's store"
            f" {stored.isoformat(timespec='seconds')}: nothing is erased, merged, deleted or dated by a wrong clock"
        )


def checked_time(lake: Lake) -> datetime:
    """This machine's time, after `check_clock`: it dates rows that are never changed.

    Raises ClockError, LakeError, StoreUnavailable.
    """
    now = datetime.now(UTC)
    check_clock(now, store_time(lake))
    return now
