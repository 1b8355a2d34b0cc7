"""What the maintenance did, beside what every job counts of its runs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import Counter
from prometheus_client.registry import CollectorRegistry

if TYPE_CHECKING:
    from cloud_jobs.maintenance.job import MaintenanceRun


class MaintenanceMetrics:
    """Counts of one process, in the registry of its runs."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, registry=registry)
        self._merges = counter("waybill_maintain_merges_total", "Merges of files", ["table"])
        self._deleted = counter(
            "waybill_maintain_deleted_files_total", "Data files deleted that nobody needs any more", ["table"]
        )
        self._left = counter(
            "waybill_maintain_left_total", "Merges and erasures whose files another run took first", ["table"]
        )
        self._errors = counter("waybill_maintain_errors_total", "Parts of a run that failed")
        self._erased = counter("waybill_maintain_erased_positions_total", "Positions erased")
        self._copies = counter("waybill_maintain_removed_copies_total", "Rows removed that were there twice")

    def take(self, run: MaintenanceRun) -> None:
        """What a run did."""
        for table in run.tables:
            self._merges.labels(table.table).inc(table.merges)
            self._deleted.labels(table.table).inc(table.orphans + table.replaced_files)
            self._left.labels(table.table).inc(table.left)
        self._errors.inc(len(run.all_errors))
        self._erased.inc(run.positions_erased)
        self._copies.inc(run.copies_removed or 0)
