"""One naming scheme over all processes, `waybill_{program}_{thing}_{unit}`, and no label that grows with the fleet."""

from __future__ import annotations

from collections import Counter

from tests.structure.metric_registries import by_program, every_metric

OTHER_UNITS = {"bits", "days", "hours", "kb", "kib", "mb", "mib", "milliseconds", "minutes", "ms", "percent", "us"}
GROWS_WITH_THE_FLEET = {"account", "device", "fence", "payer", "vehicle"}


def test_each_name_begins_with_its_program_and_ends_in_its_unit() -> None:
    wrong = [
        metric.name
        for program, metrics in by_program().items()
        for metric in metrics
        if not metric.name.startswith(f"waybill_{program}_")
        or OTHER_UNITS & set(metric.name.split("_"))
        or metric.name.endswith("_total") != (metric.type == "counter")
        or not metric.text
    ]
    assert wrong == []
    assert len(every_metric()) > 60


def test_no_two_processes_export_one_name() -> None:
    names = Counter(metric.name for metrics in by_program().values() for metric in metrics)
    assert [name for name, count in names.items() if count > 1] == []


def test_no_label_grows_with_the_fleet() -> None:
    assert [name for name, metric in every_metric().items() if GROWS_WITH_THE_FLEET & set(metric.labels)] == []
