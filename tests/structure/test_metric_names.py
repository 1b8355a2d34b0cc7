"""One naming scheme over all processes: `waybill_{program}_{thing}_{unit}`, and no label for each device.

docs/monitoring.md states the rules for people.
"""

from __future__ import annotations

import ast
import re
from collections import Counter

import pytest

from tests.structure.metric_registries import REGISTRIES, ExportedMetric, by_program, every_metric
from tests.structure.test_vocabulary import MODULES

METRICS = every_metric()
# What a gauge's or a histogram's name ends in: a base unit, what is counted, or a state that is 1 or 0.
UNITS = {"seconds", "bytes", "ratio"}
COUNTED = {
    "alerts",
    "batches",
    "certificates",
    "commits",
    "devices",
    "erasures",
    "errors",
    "fences",
    "files",
    "messages",
    "partitions",
    "problems",
    "records",
    "rows",
    "runs",
    "seq",
    "statements",
    "streams",
    "tenants",
    "topics",
    "versions",
}
STATES = {"computed", "connected", "healthy", "reachable", "readable", "up"}
OTHER_UNITS = {"bits", "days", "hours", "kb", "kib", "mb", "mib", "milliseconds", "minutes", "ms", "percent", "us"}
LABELS = {
    "broker",
    "cause",
    "class",
    "cluster",
    "command",
    "hop",
    "member",  # of the agent, which counts 64 names apart
    "kind",
    "namespace",
    "outcome",
    "reason",
    "result",
    "source",
    "state",
    "subscription",
    "table",
    "target",
    "tenant",
    "topic",
    "type",
    "verdict",
    "webhook",
}
"""Each has few values; of webhooks the settings name at most 200. One that grows with the fleet (a device, an account)
would grow Prometheus with it."""
WRITTEN = re.compile(r"waybill_[a-z0-9]+(_[a-z0-9]+)+")


def test_each_name_begins_with_its_program() -> None:
    wrong = {
        metric.name
        for program, metrics in by_program().items()
        for metric in metrics
        if not re.fullmatch(rf"waybill_{program}(_[a-z0-9]+)+", metric.name)
    }
    assert wrong == set()


def test_no_two_processes_export_one_name() -> None:
    names = Counter(metric.name for metrics in by_program().values() for metric in metrics)
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_each_name_ends_in_its_unit(metric: ExportedMetric) -> None:
    words = metric.name.removesuffix("_total").split("_")
    assert not OTHER_UNITS & set(words), "base units: seconds and bytes"
    assert metric.name.endswith("_total") == (metric.type == "counter"), "counters end in _total, nothing else does"
    assert not UNITS & set(words[:-1]), "a unit is the last word"
    if metric.type != "counter":
        assert words[-1] in UNITS | COUNTED | STATES
    assert metric.text, "it says what it is"


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_no_label_grows_with_the_fleet(metric: ExportedMetric) -> None:
    assert set(metric.labels) <= LABELS


def test_each_metric_that_the_code_names_is_in_a_registry_that_these_tests_know() -> None:
    modules = [
        tree for tree in MODULES.values() if any(name.startswith("prometheus_client") for name in imported(tree))
    ]
    written = {text for tree in modules for text in texts(tree) if WRITTEN.fullmatch(text)}
    assert len(written) > 60
    assert written - METRICS.keys() == set(), f"add its registry to {REGISTRIES.keys()}"


def texts(tree: ast.Module) -> set[str]:
    return {one.value for one in ast.walk(tree) if isinstance(one, ast.Constant) and isinstance(one.value, str)}


def imported(tree: ast.Module) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found
