"""One run of the maintenance: erases, merges, sweeps, each table after the other, and says what it did."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import partial
from threading import Event
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog
from deltalake.exceptions import DeltaError
from numpy.typing import NDArray
from pyarrow.fs import FileSystem

from cloud_jobs.applied_fences import sweep_fences
from cloud_jobs.errors import CommitConflict, CommitFailed, LakeError
from cloud_jobs.lake.dead_runs import declare_dead, runs_without_closing
from cloud_jobs.lake.erasures import Erasure, declare_erasure
from cloud_jobs.lake.location import error_text
from cloud_jobs.lake.schemas import RECORDS, TABLES
from cloud_jobs.lake.store_clock import check_clock, store_time
from cloud_jobs.lake.stored_files import StoredFiles, read_stored
from cloud_jobs.lake.stream_order import stream_codes
from cloud_jobs.lake.tables import Lake
from cloud_jobs.maintenance.config import MaintenanceSettings
from cloud_jobs.maintenance.covered import Covered, covered_by_jobs, everything
from cloud_jobs.maintenance.declaring import check_covered, is_declared, of_a_known_device
from cloud_jobs.maintenance.erasing import erase, erase_old, not_covered, old_positions
from cloud_jobs.maintenance.key_ranges import KeyRange, RowSource
from cloud_jobs.maintenance.last_run import LastMaintenance, note_last_run, read_last_run
from cloud_jobs.maintenance.merge_plan import FileLimits, growing_merges, may_share, settled_merges
from cloud_jobs.maintenance.personal import DERIVED
from cloud_jobs.maintenance.rewriting import Keep, MaintenancePoint, Rewriter
from cloud_jobs.maintenance.sweeping import sweep_clocks, sweep_coverage, sweep_log, sweep_table
from cloud_jobs.maintenance.table_files import TableFile, by_day, table_files

# Files of every table are merged and sorted, day by day, so that their number stays bounded.

_log = structlog.get_logger("maintain")
_MAX_ROUNDS: Final = 3


class CompactionResult(NamedTuple):
    """How many merges were made, of how many files, and how many were left because others took their files first."""

    merges: int = 0
    files: int = 0
    left: int = 0


def compact(rewriter: Rewriter, table: str, hot_days: int, *, dry_run: bool = False) -> CompactionResult:
    """Merges what is due in a table. A dry run only counts. Raises LakeError, CommitFailed."""
    merges = files = left = 0
    # what was merged may be due again, in the next size
    for _ in range(1 if dry_run else _MAX_ROUNDS):
        due = due_merges(rewriter, table, rewriter.now(), hot_days)
        for merge in due:
            if rewriter.stopped():
                return CompactionResult(merges, files, left)
            made = dry_run or rewriter.rewrite(table, merge).done
            merges, files, left = merges + made, files + len(merge) * made, left + (not made)
            if not dry_run:
                _log.info("merged" if made else "left", table=table, day=_text(merge[0].day), files=len(merge))
        if not due:
            break
    return CompactionResult(merges, files, left)


def due_merges(rewriter: Rewriter, table: str, now: datetime, hot_days: int) -> list[Sequence[TableFile]]:
    """The merges that are due in a table as it is."""
    due: list[Sequence[TableFile]] = []
    growing_from = (now - timedelta(days=hot_days - 1)).date()
    # a file of which the log does not say how many rows it has is another writer's: it is left as it is
    files = [file for file in table_files(rewriter.lake.open(table), table) if file.rows >= 0]
    for day, of_day in by_day(files):
        is_past = day is not None and day < growing_from
        settled = settled_merges(of_day, rewriter.limits, TABLES[table].order) if is_past else []
        due += settled or growing_merges(of_day, rewriter.limits)
    return due


def _text(day: date | None) -> str:
    return day.isoformat() if day else ""


# Lines and certificates that dead runs of the closing left are deleted: no closing names them, nobody reads them.

_TABLES: Final = ("rated_lines", "certificates")


class _RunsOfFile(NamedTuple):
    table: str
    file: TableFile
    rows: Counter[str]
    is_old: bool


def sweep_dead_closings(
    rewriter: Rewriter, settings: MaintenanceSettings, now: datetime, *, dry_run: bool = False
) -> int:
    """Deletes the rows of runs that no closing names and that have none younger than `orphan_age_s`; how many.

    A run that goes on all the same closes nothing (see `lake.dead_runs`). Raises LakeError, CommitConflict,
    CommitFailed, OSError.
    """
    lake, oldest = rewriter.lake, now - timedelta(seconds=settings.orphan_age_s)
    files = [one for table in _TABLES for one in _runs(rewriter, table, oldest)]
    # a merge makes old rows younger; they go a few hours later
    young = {run for one in files if not one.is_old for run in one.rows}
    old = {run for one in files for run in one.rows} - young
    # from here on a run that was merely stopped closes nothing
    dead = runs_without_closing(lake, lake.open("closings"), old) if dry_run or not old else declare_dead(lake, old)
    gone = 0
    for one in files:
        found = sum(one.rows[run] for run in dead)
        if found and not dry_run:
            result = rewriter.rewrite(one.table, [one.file], lambda rows: _keep(rows, dead))
            # what another rewrite took first is for the next run
            found = result.dropped if result.done else 0
        gone += found
    return gone


def _keep(rows: pa.Table, dead: set[str]) -> pa.ChunkedArray:
    return pc.invert(pc.is_in(rows["run"].cast(pa.string()), pa.array(sorted(dead), pa.string())))


def _runs(rewriter: Rewriter, table: str, oldest: datetime) -> list[_RunsOfFile]:
    """The runs of each file. Most have one, which their bounds say; of the others one column is read."""
    opened = rewriter.lake.open(table)
    stored = StoredFiles.of(opened, table)
    if not len(stored):
        return []
    files: FileSystem = rewriter.lake.files(table)
    written = stored.actions["modification_time"].cast(pa.timestamp("ms", tz="UTC")).to_pylist()
    by_path = {file.path: file for file in table_files(opened, table)}
    found = []
    for path, (low, high), moment in zip(stored.paths, stored.bounds("run"), written, strict=True):
        file = by_path[path]
        if low is not None and low == high and file.rows >= 0:
            rows = Counter({low: file.rows})
        else:
            rows = Counter(read_stored(files, table, path, ["run"], {})["run"].to_pylist())
        found.append(_RunsOfFile(table, file, rows, moment < oldest))
    return found


# Records that are there twice are kept once: of the copies one stays, file by file, however many there are.

_TABLE: Final = "records"
_ORDER: Final = TABLES[_TABLE].order
_IDS: Final = pa.schema([(name, RECORDS.field(name).type) for name in _ORDER])


class OnceEachResult(NamedTuple):
    """How many copies went, and how many files were not looked at, of days that grow, or left to other runs."""

    copies: int = 0
    left: int = 0


def keep_once_each(rewriter: Rewriter, hot_days: int, *, dry_run: bool = False) -> OnceEachResult:
    """Keeps each record once, on all days that are sorted; a dry run only counts. Raises LakeError, CommitFailed.

    A day that still grows is not sorted, so it is left: so many files of which each may hold any device would each be
    read as often as there are files.
    """
    grows_from = (rewriter.now() - timedelta(days=hot_days - 1)).date()
    copies = left = 0
    for day, files in by_day(table_files(rewriter.lake.open(_TABLE), _TABLE)):
        if _is_sorted(rewriter, day, files, grows_from):
            of_day = _of_day(rewriter, files, dry_run=dry_run)
            copies, left = copies + of_day.copies, left + of_day.left
        elif len(files) > 1:
            left += len(files)
    return OnceEachResult(copies, left)


def _is_sorted(rewriter: Rewriter, day: date | None, files: Sequence[TableFile], grows_from: date) -> bool:
    # what has no day is little, and never past
    return day is None or (day < grows_from and not settled_merges(files, rewriter.limits, _ORDER))


def _of_day(rewriter: Rewriter, files: Sequence[TableFile], *, dry_run: bool) -> OnceEachResult:
    copies = left = 0
    there = list(files)
    # the smaller of two files is written again
    for file in sorted(files, key=lambda one: one.rows):
        if rewriter.stopped():
            break
        # of a file whose log does not say how many rows it has it cannot be said that none was lost
        if file.rows < 0:
            left += 1
            continue
        others = [other for other in there if other is not file and may_share(file, other, _ORDER)]
        found = _count(rewriter, file, others)
        if not found:
            continue
        done = dry_run or rewriter.rewrite(_TABLE, [file], _kept_beside(_ids(rewriter, others)), beside=others).done
        # what it has from now on is in no other file
        there.remove(file)
        copies, left = copies + found * done, left + (not done)
        _log.info("kept once" if done else "left", table=_TABLE, path=file.path, copies=found)
    return OnceEachResult(copies, left)


def _count(rewriter: Rewriter, file: TableFile, others: Sequence[TableFile]) -> int:
    """How many rows of a file are copies; only ids are read, no more at a time than fits into memory."""
    mine, theirs = _ids(rewriter, [file]), _ids(rewriter, others)
    found = 0
    for keys in _ids(rewriter, [file, *others]).ranges(rewriter.limits.memory):
        rows = mine.read(keys)
        if rows.num_rows:
            found += pc.sum(pc.invert(_stay(rows, theirs.read(keys)))).as_py() or 0
    return found


def _kept_beside(others: RowSource) -> Keep:
    def kept(rows: pa.Table) -> pa.ChunkedArray:
        return _stay(rows, others.read(_range_of(rows)) if rows.num_rows else _IDS.empty_table())

    return kept


def _ids(rewriter: Rewriter, files: Sequence[TableFile]) -> RowSource:
    return RowSource(rewriter.lake.files(_TABLE), tuple(file.path for file in files), _IDS, _ORDER)


def _stay(rows: pa.Table, others: pa.Table) -> pa.ChunkedArray:
    """Which rows stay, in their order: the first of each id that is in no other file."""
    # those of others first: of equal ids the first one is no copy
    ids = pa.concat_tables([others, rows.select(_IDS.names).cast(_IDS)])
    at, codes, seqs = _sorted(ids)
    is_copy = np.zeros(ids.num_rows, bool)
    is_copy[at[1:]] = (np.diff(codes[at]) == 0) & (np.diff(seqs[at]) == 0)
    return pa.chunked_array([pa.array(~is_copy[others.num_rows :])])


def _sorted(ids: pa.Table) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The places of ids in their order, equal ones as they came; a number for the stream of each, and its seq."""
    codes, seqs = stream_codes(ids), ids["seq"].to_numpy()
    return np.lexsort((seqs, codes)), codes, seqs


def _range_of(rows: pa.Table) -> KeyRange:
    """The range of keys from the lowest to the highest of some rows."""
    at, _, _ = _sorted(rows)
    low, high = (tuple(row.values()) for row in rows.select(_ORDER).take(pa.array(at[[0, -1]])).to_pylist())
    return KeyRange(low, (*high[:-1], high[-1] + 1))


_FAILURES: Final = (CommitConflict, CommitFailed, LakeError, DeltaError, OSError, ValueError)


@dataclass
class TableRun:
    """What a run did with one table. `left`: merges and erasures whose files another run took first.

    `log_files`: None where the run did not look at the logs (see `log_interval_s`).
    """

    table: str
    files_before: int = 0
    files: int = 0
    bytes_before: int = 0
    bytes: int = 0
    merges: int = 0
    orphans: int = 0
    replaced_files: int = 0
    log_files_before: int | None = None
    log_files: int | None = None
    left: int = 0
    error: str = ""


@dataclass
class MaintenanceRun:
    """What a run did. A dry run says what it would do.

    `copies_removed`: rows of records that were there besides; None if nobody asked. `files_not_searched`: for them,
    as their day is not sorted yet, or because another run took them first. `dead_rows`: lines and certificates of runs
    of the closing that died. `derived_erased`: rows of alerts, verdicts, events and encounters, as a data subject
    asked for it or as they were too old; of the quarantine those too old alone.
    """

    tables: list[TableRun] = field(default_factory=list)
    copies_removed: int | None = None
    files_not_searched: int = 0
    positions_erased: int = 0
    conflicts_erased: int = 0
    derived_erased: dict[str, int] = field(default_factory=dict)
    coverage_files: int = 0
    fence_files: int = 0
    dead_rows: int = 0
    seconds: float = 0.0
    errors: list[str] = field(default_factory=list)
    """What failed of no single table: erasures, and the coverage."""

    @property
    def is_whole(self) -> bool:
        """Whether nothing failed; what was left because others came first is for the next run."""
        return not self.all_errors

    @property
    def all_errors(self) -> tuple[str, ...]:
        """What failed, in any table or in none."""
        return *self.errors, *(f"{table.table}: {table.error}" for table in self.tables if table.error)

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


class Maintenance:
    """Runs over a lake. Interrupted anywhere it has done no harm; `reached` is called between its writes.

    `now` and `store_now` are the clocks of this machine and of the store that has the lake.
    """

    def __init__(
        self,
        lake: Lake,
        settings: MaintenanceSettings,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        store_now: Callable[[], datetime] | None = None,
        reached: Callable[[MaintenancePoint], None] = lambda _: None,
        stop: Event | None = None,
    ) -> None:
        limits = FileLimits(settings.file_mb << 20, settings.memory_mb << 20)
        self._lake = lake
        self._settings = settings
        self._now = now
        self._store_now = store_now or partial(store_time, lake)
        self._stop = stop or Event()
        self._rewriter = Rewriter(lake, limits, now, reached, self._stop.is_set)

    def run(
        self, erasures: Sequence[Erasure] = (), *, dry_run: bool = False, once_each: bool = False
    ) -> MaintenanceRun:
        """One run, with erasures that are declared now. What fails is in the result, and the rest is done.

        `once_each`: a record that is there several times is kept once. Raises LakeError if there is no lake,
        ClockError, StoreUnavailable.
        """
        began = time.monotonic()
        made = MaintenanceRun()
        # not made here: a lake that is not there is a mistake in the settings
        self._lake.check("records")
        if not dry_run:
            check_clock(self._now(), self._store_now())
            with _failures_in(made.errors, "tables"):
                self._lake.create()
        with _failures_in(made.errors, "erasures"):
            self._erase(made, erasures, dry_run=dry_run)
        log_swept_at = self._log_swept_at()
        logs_due = not dry_run and self._is_due(log_swept_at)
        for table in TABLES:
            if not self._stop.is_set():
                made.tables.append(self._maintain(table, dry_run=dry_run, with_log=logs_due))
        if once_each and not self._stop.is_set():
            # after the merges: a day that is sorted is read once
            with _failures_in(made.errors, "records that are there twice"):
                kept = keep_once_each(self._rewriter, self._settings.hot_days, dry_run=dry_run)
                made.copies_removed, made.files_not_searched = kept
        if (dry_run or logs_due) and not self._stop.is_set():
            self._erase_old(made, dry_run=dry_run)
            with _failures_in(made.errors, "dead closings"):
                made.dead_rows = sweep_dead_closings(self._rewriter, self._settings, self._now(), dry_run=dry_run)
        if not dry_run and not self._stop.is_set():
            if logs_due:
                log_swept_at = self._now()
                with _failures_in(made.errors, "coverage"):
                    made.coverage_files = sweep_coverage(self._lake, self._settings, log_swept_at)
                    sweep_clocks(self._lake, self._settings, log_swept_at)
            with _failures_in(made.errors, "fences"):
                oldest = self._now() - timedelta(seconds=self._settings.orphan_age_s)
                made.fence_files = sweep_fences(self._lake, oldest.timestamp())
            self._rewriter.reached(MaintenancePoint.SWEPT)
        made.seconds = time.monotonic() - began
        if not dry_run and not self._stop.is_set():
            with _failures_in(made.errors, "note"):
                note_last_run(self._lake, LastMaintenance(self._now(), made.seconds, made.all_errors, log_swept_at))
        return made

    def _log_swept_at(self) -> datetime | None:
        last = read_last_run(self._lake)
        return None if last is None else last.log_swept_at

    def _is_due(self, swept_at: datetime | None) -> bool:
        """Whether logs and coverage are swept: also after a clock that was ahead has noted when they were."""
        return swept_at is None or not 0 <= (self._now() - swept_at).total_seconds() < self._settings.log_interval_s

    def _erase(self, made: MaintenanceRun, erasures: Sequence[Erasure], *, dry_run: bool) -> None:
        after_jobs = self._settings.erase_after_jobs
        covered = covered_by_jobs(self._lake) if after_jobs else everything(self._lake)
        planned = self._declare(made, erasures, covered, dry_run=dry_run)
        if not dry_run:
            self._rewriter.reached(MaintenancePoint.DECLARED)
        erased = erase(self._rewriter, covered.ingest_number, planned, dry_run=dry_run)
        made.positions_erased, made.conflicts_erased = erased.positions, erased.rows.pop("quarantine", 0)
        made.derived_erased = erased.rows
        made.errors += erased.errors
        if erased.left:
            _log.info("positions left for the next run", files=erased.left)

    def _erase_old(self, made: MaintenanceRun, *, dry_run: bool) -> None:
        days = dict.fromkeys(DERIVED, self._settings.erase_events_after_days)
        for table, after in (days | {"quarantine": self._settings.erase_quarantine_after_days}).items():
            if after is not None:
                with _failures_in(made.errors, f"old rows of {table}"):
                    gone = erase_old(self._rewriter, table, old_positions(after, self._now()).before, dry_run=dry_run)
                    made.derived_erased[table] = made.derived_erased.get(table, 0) + gone

    def _declare(
        self, made: MaintenanceRun, erasures: Sequence[Erasure], covered: Covered, *, dry_run: bool
    ) -> list[Erasure]:
        """Declares what may be; a dry run returns what would be declared."""
        days, now = self._settings.erase_positions_after_days, self._now()
        planned, old = [], [] if days is None else [old_positions(days, now)]
        for asked in [*erasures, *old]:
            with _failures_in(made.errors, "erasures"):
                # a declared erasure also explains missing records: none is declared that takes nothing
                if asked in old and not is_declared(self._lake, asked) and not not_covered(self._lake, asked, 0):
                    continue
                erasure = of_a_known_device(self._lake, asked)
                if is_declared(self._lake, erasure):
                    continue
                check_covered(self._lake, erasure, covered)
                if dry_run:
                    planned.append(erasure)
                else:
                    declare_erasure(self._lake, erasure, now)
        return planned

    def _maintain(self, table: str, *, dry_run: bool, with_log: bool) -> TableRun:
        run, errors = TableRun(table), list[str]()
        # the others must not wait for one table, nor the sweep for a merge, nor either for a moment in which many wrote
        with _failures_in(errors, "merge"):
            run.files_before, run.bytes_before = self._extent(table)
            compacted = compact(self._rewriter, table, self._settings.hot_days, dry_run=dry_run)
            run.merges, run.left = compacted.merges, compacted.left
        with _failures_in(errors, "sweep"):
            swept = sweep_table(self._lake, table, self._settings, self._now(), dry_run=dry_run)
            run.orphans, run.replaced_files = swept.orphans, swept.replaced
        if with_log:
            with _failures_in(errors, "log"):
                run.log_files_before, run.log_files = sweep_log(self._lake, table, self._settings, self._now())
        run.error = "; ".join(dict.fromkeys(errors))
        with suppress(*_FAILURES):
            run.files, run.bytes = self._extent(table)
        _log.info("maintained", **asdict(run))
        return run

    def _extent(self, table: str) -> tuple[int, int]:
        files = table_files(self._lake.open(table), table)
        return len(files), sum(file.size for file in files)


@contextmanager
def _failures_in(errors: list[str], what: str) -> Iterator[None]:
    """What fails is noted, and the run goes on."""
    try:
        yield
    except _FAILURES as error:
        errors.append(f"{what}: {error_text(error)}")
