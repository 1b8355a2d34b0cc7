"""One run of the maintenance: erases, merges, sweeps, each table after the other, and says what it did."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import partial
from threading import Event
from typing import Any, Final, NamedTuple

import structlog
from deltalake.exceptions import DeltaError

from cloud_jobs.errors import CommitConflict, CommitFailed, LakeError
from cloud_jobs.job_settings import MaintenanceSettings
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.erasures import Erasure, declare_erasure, read_erasures
from cloud_jobs.lake.location import error_text
from cloud_jobs.lake.schemas import TABLES, WRITTEN_BY
from cloud_jobs.lake.snapshots import sweep_fences
from cloud_jobs.lake.tables import COVERS, INGEST, Lake, check_clock, store_time
from cloud_jobs.lake.transactions import counter_of, newest_number, stated
from cloud_jobs.maintenance.compaction import (
    FileLimits,
    MaintenancePoint,
    Rewriter,
    growing_merges,
    settled_merges,
)
from cloud_jobs.maintenance.erasing import DERIVED, erase, erase_old, not_covered, old_positions
from cloud_jobs.maintenance.sweeping import (
    LastMaintenance,
    TableFile,
    by_day,
    note_last_run,
    read_last_run,
    sweep_clocks,
    sweep_coverage,
    sweep_log,
    sweep_table,
    table_files,
)

# Progress of derived tables: positions must not be erased before they are covered.

_ALWAYS: Final = "usage"
"""Bills are made of it: it is waited for although it was never computed."""
_DERIVED: Final = (_ALWAYS, "geofence_events", "encounters")


class JobProgress(NamedTuple):
    """Up to which ingest number all jobs have read the records, and the command that is the farthest behind."""

    ingest_number: int
    last: str


def covered_by_jobs(lake: Lake) -> JobProgress:
    """What every derived table covers that is computed in this lake. Raises LakeError."""
    # the tables first: what is taken in meanwhile is not covered
    states = {table: stated(lake.open(table), COVERS) for table in _DERIVED}
    found = {table: number or 0 for table, number in states.items() if number is not None or table == _ALWAYS}
    last = min(found, key=lambda table: found[table])
    return JobProgress(min(found[last], everything(lake).ingest_number), WRITTEN_BY[last])


def everything(lake: Lake) -> JobProgress:
    """All that was taken in. Raises LakeError."""
    return JobProgress(counter_of(newest_number(lake.open("records"), INGEST)), "")


# Erasures: declared only when all derived tables are computed.


def is_declared(lake: Lake, erasure: Erasure) -> bool:
    """Whether the erasures that are there say as much already. Raises LakeError."""
    return read_erasures(lake).say(erasure)


def of_a_known_device(lake: Lake, erasure: Erasure) -> Erasure:
    """The erasure with the tenant of its device. Raises LakeError if there is no such device, or if several tenants
    have one."""
    if erasure.device is None:
        return erasure
    tenant, device = erasure.tenant, erasure.device
    asked = None if tenant is None else [TenantDevice(tenant, device)]
    rows = lake.coverage_rows(lake.coverage_manifest(lake.ingest_commit()), asked)
    names = zip(rows["tenant"].to_pylist(), rows["device"].to_pylist(), strict=True)
    tenants = sorted({one for one, name in names if name == device})
    if not tenants:
        whose = "" if tenant is None else f" of {tenant}"
        raise LakeError(f"no record of a device {device}{whose} was ever received, so nothing was done")
    if len(tenants) > 1:
        raise LakeError(f"{', '.join(tenants)} each have a device {device}: say whose positions go, by --tenant")
    return erasure._replace(tenant=tenants[0])


def check_covered(lake: Lake, erasure: Erasure, covered: JobProgress) -> None:
    """Raises LakeError if positions of an erasure are not computed from yet."""
    if waiting := not_covered(lake, erasure, covered.ingest_number):
        whose = "all devices" if erasure.device is None else f"{erasure.tenant or 'any tenant'}/{erasure.device}"
        raise LakeError(
            f"positions of {whose} before {erasure.before.isoformat()} wait: {waiting:,} of them are not computed from"
            f" yet; run `{covered.last}`, and this again"
        )


# Compaction day by day, so that the number of files stays bounded.

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

    `derived_erased`: rows of alerts, verdicts, events and encounters, as a data subject asked for it or as they were
    too old; of the quarantine those too old alone.
    """

    tables: list[TableRun] = field(default_factory=list)
    positions_erased: int = 0
    conflicts_erased: int = 0
    derived_erased: dict[str, int] = field(default_factory=dict)
    coverage_files: int = 0
    fence_files: int = 0
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

    def run(self, erasures: Sequence[Erasure] = (), *, dry_run: bool = False) -> MaintenanceRun:
        """One run, with erasures that are declared now. What fails is in the result, and the rest is done.

        Raises LakeError if there is no lake, ClockError, StoreUnavailable.
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
        if (dry_run or logs_due) and not self._stop.is_set():
            self._erase_old(made, dry_run=dry_run)
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
        self, made: MaintenanceRun, erasures: Sequence[Erasure], covered: JobProgress, *, dry_run: bool
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
