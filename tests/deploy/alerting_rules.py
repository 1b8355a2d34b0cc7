"""The alerting rules of `deploy/prometheus`, and what of the metrics they and the dashboards may name."""

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.deploy.promql import Named
from tests.structure.metric_registries import ExportedMetric, by_program

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "prometheus"
RULES = FOLDER / "waybill-rules.yml"
SCRAPE = FOLDER / "prometheus.yml"
TESTS = FOLDER / "waybill-rules-test.yml"
# What Prometheus adds to whatever it reads, and the metrics that are its own.
TARGET = {"job", "instance"}
REGIONAL = {"gateway", "access", "alerts", "canary"}
"""Their targets have the label `region` in the example of the scrape configuration."""
OWN = {"up": TARGET | {"region"}, "ALERTS": {"alertname", "alertstate", "severity"}}
_RULE = re.compile(
    r"      - alert: (?P<name>\w+)\n"
    r"        expr: '(?P<expr>(?:[^'\n]|'')+)'\n"
    r"        for: (?P<for_>\w+)\n"
    r"        labels: \{severity: (?P<severity>\w+)\}\n"
    r"        annotations:\n"
    r"          summary: '(?P<summary>(?:[^'\n]|'')+)'\n"
    r"          runbook_url: (?P<runbook>\S+)\n"
)


class AlertingRule(NamedTuple):
    name: str
    expr: str
    for_: str
    severity: str
    summary: str
    runbook: str


@cache
def rules() -> tuple[AlertingRule, ...]:
    """Each rule; the file has one form, so that no parser of YAML is needed to read it."""
    text = RULES.read_text(encoding="utf-8")
    found = [AlertingRule(*(one.replace("''", "'") for one in match.groups())) for match in _RULE.finditer(text)]
    assert len(found) == text.count("- alert:"), "each rule is written like the others, one line for each key"
    return tuple(found)


@cache
def samples() -> dict[str, tuple[ExportedMetric, frozenset[str]]]:
    """By the name of what a query can select: its metric, and the labels that it has in Prometheus."""
    found = {}
    for program, metrics in by_program().items():
        added = TARGET | ({"region"} if program in REGIONAL else set())
        for metric in metrics:
            for name in metric.sample_names:
                le = {"le"} if name.endswith("_bucket") and metric.type == "histogram" else set()
                found[name] = (metric, frozenset(added | le | set(metric.labels)))
    return found


def labels_of(name: str) -> frozenset[str] | None:
    """The labels of what a query selects; None: nobody exports it."""
    if name in OWN:
        return frozenset(OWN[name])
    return samples()[name][1] if name in samples() else None


def faults(named: Named) -> list[str]:
    wrong, known = [], set[str]()
    for selector in named.selectors:
        labels = labels_of(selector.metric)
        if labels is None:
            wrong.append(f"nobody exports {selector.metric}")
            continue
        known |= labels
        wrong += [f"{selector.metric} has no label {label}" for label in selector.labels - labels]
    return [*wrong, *(f"nothing here has a label {label}" for label in named.labels - known)]
