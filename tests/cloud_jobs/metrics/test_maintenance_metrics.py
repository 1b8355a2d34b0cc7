"""What the maintenance counts is what its runs say."""

from __future__ import annotations

from prometheus_client.registry import CollectorRegistry

from cloud_jobs.maintenance.job import MaintenanceRun, TableRun
from cloud_jobs.run_metrics import MaintenanceMetrics


def test_the_counts_of_runs_add_up() -> None:
    registry = CollectorRegistry()
    metrics = MaintenanceMetrics(registry)
    metrics.take(MaintenanceRun([TableRun("records", merges=2, orphans=1, replaced_files=4, left=1)]))
    metrics.take(
        MaintenanceRun(
            [TableRun("records", merges=1, error="gone"), TableRun("usage", merges=5)],
            positions_erased=7,
            errors=["coverage"],
        )
    )

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"waybill_maintain_{name}_total", labels)

    assert (value("merges", table="records"), value("merges", table="usage")) == (3, 5)
    assert value("deleted_files", table="records") == 5
    assert value("left", table="records") == 1
    assert (value("errors"), value("erased_positions")) == (2, 7)
