"""One run of the maintenance: erases, merges, sweeps, each table after the other, and says what it did."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from threading import Event
from typing import Any, Final

import structlog
from deltalake.exceptions import DeltaError

from cloud_jobs.errors import CommitFailed, LakeError
from cloud_jobs.lake.erasures import Erasure, declare_erasure
from cloud_jobs.lake.schemas import TABLES
from cloud_jobs.lake.tables import Lake
from cloud_jobs.maintenance.compaction import compact
from cloud_jobs.maintenance.config import MaintenanceSettings
from cloud_jobs.maintenance.erasing import declare_old, erase
from cloud_jobs.maintenance.merge_plan import FileLimits
from cloud_jobs.maintenance.rewriting import MaintenancePoint, Rewriter
from cloud_jobs.maintenance.store_clock import check_clock, store_time
from cloud_jobs.maintenance.sweeping import sweep_coverage, sweep_table
from cloud_jobs.maintenance.table_files import table_files

_BYTES_OF_ROW: Final = 1000
"""What a row takes in memory while it is read, sorted and written, all copies together."""

_log = structlog.get_logger("maintain")


@dataclass
class TableRun:
    """What a run did with one table. `left`: merges and erasures whose files another run took first."""

    table: str
    files_before: int = 0
    files: int = 0
    bytes_before: int = 0
    bytes: int = 0
    merges: int = 0
    orphans: int = 0
    replaced_files: int = 0
    log_files_before: int = 0
    log_files: int = 0
    left: int = 0
    error: str = ""


@dataclass
class MaintenanceRun:
    """What a run did. A dry run says what it would do."""

    tables: list[TableRun] = field(default_factory=list)
    positions_erased: int = 0
    conflicts_erased: int = 0
    coverage_files: int = 0
    seconds: float = 0.0

    @property
    def is_whole(self) -> bool:
        """Whether nothing failed; what was left because others came first is for the next run."""
        return not any(table.error for table in self.tables)

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
        limits = FileLimits(settings.file_mb << 20, (settings.memory_mb << 20) // _BYTES_OF_ROW)
        self._lake = lake
        self._settings = settings
        self._now = now
        self._store_now = store_now or partial(store_time, lake)
        self._stop = stop or Event()
        self._rewriter = Rewriter(lake, limits, now, reached, self._stop.is_set)

    def run(self, erasures: Sequence[Erasure] = (), *, dry_run: bool = False) -> MaintenanceRun:
        """One run, with erasures that are declared now. What fails of a table is in the result.

        Raises LakeError if a table is not what this version writes, and it and CommitFailed for erasures.
        """
        began = time.monotonic()
        self._lake.check("records")
        if not dry_run:
            check_clock(self._now(), self._store_now())
            self._lake.create()
        made = MaintenanceRun()
        self._erase(made, erasures, dry_run=dry_run)
        for table in TABLES:
            if not self._stop.is_set():
                made.tables.append(self._maintain(table, dry_run=dry_run))
        if not dry_run and not self._stop.is_set():
            made.coverage_files = sweep_coverage(self._lake, self._settings, self._now())
            self._rewriter.reached(MaintenancePoint.SWEPT)
        made.seconds = time.monotonic() - began
        return made

    def _erase(self, made: MaintenanceRun, erasures: Sequence[Erasure], *, dry_run: bool) -> None:
        if not dry_run:
            for erasure in erasures:
                declare_erasure(self._lake, erasure, self._now())
            if (days := self._settings.erase_positions_after_days) is not None:
                declare_old(self._lake, days, self._now())
            self._rewriter.reached(MaintenancePoint.DECLARED)
        try:
            erased = erase(self._rewriter, dry_run=dry_run)
        except (DeltaError, OSError, ValueError) as error:
            raise LakeError(f"positions were declared erased and are not: {error}; the next run goes on") from error
        made.positions_erased, made.conflicts_erased = erased.positions, erased.conflicts
        if erased.left:
            _log.info("positions left for the next run", files=erased.left)

    def _maintain(self, table: str, *, dry_run: bool) -> TableRun:
        run = TableRun(table)
        run.files_before, run.bytes_before = self._extent(table)
        try:
            compacted = compact(self._rewriter, table, self._settings.hot_days, dry_run=dry_run)
            swept = sweep_table(self._lake, table, self._settings, self._now(), dry_run=dry_run)
        except (CommitFailed, LakeError, DeltaError, OSError, ValueError) as error:
            # the others must not wait for one table, nor for a moment in which many wrote
            run.error = str(error)
        else:
            run.merges, run.left = compacted.merges, compacted.left
            run.orphans, run.replaced_files = swept.orphans, swept.replaced
            run.log_files_before, run.log_files = swept.log_files_before, swept.log_files
        with suppress(LakeError):
            run.files, run.bytes = self._extent(table)
        _log.info("maintained", **asdict(run))
        return run

    def _extent(self, table: str) -> tuple[int, int]:
        files = table_files(self._lake.open(table), table)
        return len(files), sum(file.size for file in files)
