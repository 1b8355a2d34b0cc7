"""One run of the maintenance: erasures, then compaction and sweeping of each table."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from threading import Event
from typing import Final, NamedTuple

import structlog
from deltalake.exceptions import DeltaError

from cloud_jobs.errors import CommitConflict, CommitFailed, LakeError
from cloud_jobs.job_settings import MaintenanceSettings
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.erasures import Erasure, declare_erasure, read_erasures
from cloud_jobs.lake.location import error_text
from cloud_jobs.lake.schemas import TABLES, WRITTEN_BY
from cloud_jobs.lake.snapshots import sweep_fences
from cloud_jobs.lake.tables import COVERS, Lake, check_clock, store_time
from cloud_jobs.lake.transactions import counter_of, stated
from cloud_jobs.maintenance.compaction import (
    FileLimits,
    MaintenancePoint,
    Rewriter,
    growing_merges,
    settled_merges,
)
from cloud_jobs.maintenance.erasing import DERIVED, count_uncovered, erase, erase_old, old_positions
from cloud_jobs.maintenance.sweeping import (
    LastMaintenance,
    TableFile,
    by_day,
    note_last_run,
    sweep_coverage,
    sweep_log,
    sweep_table,
    table_files,
)

# Erasures are declared and carried out only for records that all derived tables cover.

_ALWAYS: Final = "usage"
"""Bills are computed from it, so erasures wait for it even if it was never computed."""
_DERIVED: Final = (_ALWAYS, "geofence_events", "encounters")


class JobProgress(NamedTuple):
    """The ingest number up to which all jobs have read the records, and the command of the slowest job."""

    ingest_number: int
    last: str


def covered_by_jobs(lake: Lake) -> JobProgress:
    """The progress of the derived tables that are in use. Raises LakeError."""
    # the tables before the records: what is ingested meanwhile is not covered
    states = {table: stated(lake.open(table), COVERS) for table in _DERIVED}
    found = {table: number or 0 for table, number in states.items() if number is not None or table == _ALWAYS}
    last = min(found, key=lambda table: found[table])
    return JobProgress(min(found[last], newest_ingest(lake)), WRITTEN_BY[last])


def newest_ingest(lake: Lake) -> int:
    return counter_of(lake.ingest_commit())


def with_known_device(lake: Lake, erasure: Erasure) -> Erasure:
    """The erasure, if a record of its device was ever received. Raises LakeError."""
    if erasure.device is not None:
        device = TenantDevice(str(erasure.tenant), erasure.device)
        if not lake.coverage([device]):
            raise LakeError(f"no record of a device {'/'.join(device)} was ever received, so nothing was done")
    return erasure


def check_covered(lake: Lake, erasure: Erasure, covered: JobProgress) -> None:
    """Raises LakeError if a job has not read all positions of an erasure."""
    if waiting := count_uncovered(lake, erasure, covered.ingest_number):
        whose = "all devices" if erasure.device is None else f"{erasure.tenant}/{erasure.device}"
        raise LakeError(
            f"positions of {whose} before {erasure.before.isoformat()} cannot be erased yet: {waiting:,} of them are"
            f" not processed; run `{covered.last}`, then this command again"
        )


# Compaction day by day, so that the number of files stays bounded.

_log = structlog.get_logger("maintain")
_MAX_ROUNDS: Final = 3


class CompactionResult(NamedTuple):
    """`merges`: merges made; `left`: merges given up because another run took their files first."""

    merges: int = 0
    left: int = 0


def compact(rewriter: Rewriter, table: str, hot_days: int) -> CompactionResult:
    """Merges the files of a table that are due. Raises LakeError, CommitFailed."""
    merges = left = 0
    # merged files may be due again, in the next size
    for _ in range(_MAX_ROUNDS):
        due = due_merges(rewriter, table, rewriter.now(), hot_days)
        for merge in due:
            if rewriter.stopped():
                return CompactionResult(merges, left)
            done = rewriter.rewrite(table, merge)
            merges, left = merges + done, left + (not done)
            day = merge[0].day.isoformat() if merge[0].day else ""
            _log.info("merged" if done else "left", table=table, day=day, files=len(merge))
        if not due:
            break
    return CompactionResult(merges, left)


def due_merges(rewriter: Rewriter, table: str, now: datetime, hot_days: int) -> list[Sequence[TableFile]]:
    due: list[Sequence[TableFile]] = []
    growing_from = (now - timedelta(days=hot_days - 1)).date()
    # a file without a row count in the log is another writer's and stays as it is
    files = [file for file in table_files(rewriter.lake.open(table), table) if file.rows >= 0]
    for day, of_day in by_day(files):
        is_past = day is not None and day < growing_from
        settled = settled_merges(of_day, rewriter.limits, TABLES[table].order) if is_past else []
        due += settled or growing_merges(of_day, rewriter.limits)
    return due


_FAILURES: Final = (CommitConflict, CommitFailed, LakeError, DeltaError, OSError, ValueError)


@dataclass
class TableRun:
    """What a run did with one table. `left`: merges whose files another run took first; `orphans`: deleted files that
    no commit named; `replaced_files`: deleted files that had been merged or erased; `log_files`: None if the log was
    not swept."""

    table: str
    files: int = 0
    merges: int = 0
    orphans: int = 0
    replaced_files: int = 0
    log_files: int | None = None
    left: int = 0
    error: str = ""


@dataclass
class MaintenanceRun:
    """What a run did. `erased`: rows by table. `errors`: what failed outside the tables."""

    tables: list[TableRun] = field(default_factory=list)
    erased: dict[str, int] = field(default_factory=dict)
    coverage_files: int = 0
    fence_files: int = 0
    seconds: float = 0.0
    errors: list[str] = field(default_factory=list)

    @property
    def all_errors(self) -> tuple[str, ...]:
        return *self.errors, *(f"{table.table}: {table.error}" for table in self.tables if table.error)


class Maintenance:
    """Runs over a lake. A run may be interrupted anywhere without harm; `reached` is called between its writes.

    `now` and `store_now` are the clocks of this machine and of the lake's store.
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
        self._logs_swept_at: datetime | None = None

    def run(self, erasures: Sequence[Erasure] = ()) -> MaintenanceRun:
        """One run, which also declares `erasures`. If a part fails, its error is in the result and the rest is done.

        Raises LakeError if there is no lake, ClockError, StoreUnavailable.
        """
        began = time.monotonic()
        run = MaintenanceRun()
        # not created here: a lake that does not exist is an error in the settings
        self._lake.check("records")
        check_clock(self._now(), self._store_now())
        with _failures_in(run.errors, "tables"):
            self._lake.create()
        with _failures_in(run.errors, "erasures"):
            self._erase(run, erasures)
        sweeps_logs = self._is_due()
        for table in TABLES:
            if not self._stop.is_set():
                run.tables.append(self._maintain(table, with_log=sweeps_logs))
        if self._stop.is_set():
            return run
        if sweeps_logs:
            self._erase_old(run)
            with _failures_in(run.errors, "coverage"):
                run.coverage_files = sweep_coverage(self._lake, self._settings, self._now())
            self._logs_swept_at = self._now()
        with _failures_in(run.errors, "fences"):
            oldest = self._now() - timedelta(seconds=self._settings.orphan_age_s)
            run.fence_files = sweep_fences(self._lake, oldest.timestamp())
        self._rewriter.reached(MaintenancePoint.SWEPT)
        run.seconds = time.monotonic() - began
        with _failures_in(run.errors, "note"):
            note_last_run(self._lake, LastMaintenance(self._now(), run.seconds, run.all_errors))
        return run

    def _is_due(self) -> bool:
        """Whether logs and coverage are swept, also after a clock that was ahead was set back."""
        swept_at = self._logs_swept_at
        return swept_at is None or not 0 <= (self._now() - swept_at).total_seconds() < self._settings.log_interval_s

    def _erase(self, run: MaintenanceRun, erasures: Sequence[Erasure]) -> None:
        if self._settings.erase_after_jobs:
            covered = covered_by_jobs(self._lake)
        else:
            covered = JobProgress(newest_ingest(self._lake), "")
        self._declare(run, erasures, covered)
        self._rewriter.reached(MaintenancePoint.DECLARED)
        result = erase(self._rewriter, covered.ingest_number)
        run.erased = result.rows
        run.errors += result.errors
        if result.left:
            _log.info("erasures left for the next run", files=result.left)

    def _erase_old(self, run: MaintenanceRun) -> None:
        days = dict.fromkeys(DERIVED, self._settings.erase_events_after_days)
        for table, after in (days | {"quarantine": self._settings.erase_quarantine_after_days}).items():
            if after is not None:
                with _failures_in(run.errors, f"old rows of {table}"):
                    gone = erase_old(self._rewriter, table, old_positions(after, self._now()).before)
                    run.erased[table] = run.erased.get(table, 0) + gone

    def _declare(self, run: MaintenanceRun, erasures: Sequence[Erasure], covered: JobProgress) -> None:
        days, now = self._settings.erase_positions_after_days, self._now()
        old = [] if days is None else [old_positions(days, now)]
        for asked in [*erasures, *old]:
            with _failures_in(run.errors, "erasures"):
                if read_erasures(self._lake).say(asked):
                    continue
                # a declared erasure also explains missing records, so the retention declares none without positions
                if asked in old and not count_uncovered(self._lake, asked, 0):
                    continue
                erasure = with_known_device(self._lake, asked)
                check_covered(self._lake, erasure, covered)
                declare_erasure(self._lake, erasure, now)

    def _maintain(self, table: str, *, with_log: bool) -> TableRun:
        run, errors = TableRun(table), list[str]()
        # neither the other tables nor the sweep wait for a merge that fails
        with _failures_in(errors, "merge"):
            run.merges, run.left = compact(self._rewriter, table, self._settings.hot_days)
        with _failures_in(errors, "sweep"):
            run.orphans, run.replaced_files = sweep_table(self._lake, table, self._settings, self._now())
        if with_log:
            with _failures_in(errors, "log"):
                run.log_files = sweep_log(self._lake, table)
        run.error = "; ".join(dict.fromkeys(errors))
        with suppress(*_FAILURES):
            run.files = len(self._lake.open(table).file_uris())
        _log.info("maintained", **asdict(run))
        return run


@contextmanager
def _failures_in(errors: list[str], what: str) -> Iterator[None]:
    try:
        yield
    except _FAILURES as error:
        errors.append(f"{what}: {error_text(error)}")
