"""Each query of the dashboards is right PromQL, and names metrics and labels that exist."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.deploy.alerting_rules import ROOT, faults, labels_of, samples
from tests.deploy.promql import named_in, promtool

FOLDER = ROOT / "deploy" / "grafana"
DASHBOARDS: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))
}
# What Grafana puts in the place of a variable, so that what is left is PromQL.
VARIABLES = {"$__rate_interval": "5m", "$__range": "6h"}
EACH = pytest.mark.parametrize("name", DASHBOARDS)


class Query(NamedTuple):
    """A query of a panel; `legend` names labels."""

    where: str
    expr: str
    legend: str


def panels(dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for panel in dashboard["panels"]:
        yield panel
        yield from panel.get("panels", ())


def queries(name: str) -> Iterator[Query]:
    for panel in panels(DASHBOARDS[name]):
        for target in panel.get("targets", ()):
            yield Query(f"{name}: {panel['title']}", target["expr"], target["legendFormat"])


def plain(expr: str, dashboard: dict[str, Any]) -> str:
    for variable, value in VARIABLES.items():
        expr = expr.replace(variable, value)
    for variable in dashboard["templating"]["list"]:
        expr = expr.replace(f"${variable['name']}", "x")
    assert "$" not in expr, "each variable is one of the dashboard"
    return expr


def test_there_is_a_dashboard_for_each_place() -> None:
    places = ("alerts", "canaries", "centre", "fleet", "region", "replication", "webhooks")
    assert sorted(DASHBOARDS) == [f"waybill-{place}" for place in places]
    titles = [dashboard["title"] for dashboard in DASHBOARDS.values()]
    assert len(set(titles)) == len(titles)


def test_what_watches_and_what_stands_by_is_shown() -> None:
    """Each metric of canaries, and what says whether a process that ends is replaced at once."""
    dashboards = ("waybill-canaries", "waybill-alerts")
    shown = {
        samples()[one][0].name for name in dashboards for query in queries(name) for one in named_in(query.expr).metrics
    }
    canaries = {metric.name for metric, _ in samples().values() if metric.name.startswith("waybill_canary_")}
    assert canaries - shown == {"waybill_canary_started_timestamp_seconds"}, "which a rule needs"
    standby = {f"waybill_alerts_{name}_partitions" for name in ("held", "standby", "ready")}
    assert standby - shown == set()


@EACH
def test_each_query_names_metrics_and_labels_that_exist(name: str) -> None:
    wrong = {query.where: faults(named_in(query.expr)) for query in queries(name)}
    assert {where: found for where, found in wrong.items() if found} == {}


@EACH
def test_each_variable_asks_for_a_label_that_exists(name: str) -> None:
    for variable in DASHBOARDS[name]["templating"]["list"]:
        if variable["type"] == "query":
            metric, label = re.findall(r"label_values\((\w+), (\w+)\)", variable["query"]["query"])[0]
            assert label in (labels_of(metric) or ()), variable


@EACH
def test_promtool_takes_each_query(name: str, tmp_path: Path) -> None:
    recorded = [
        {"record": f"query:{number}", "expr": plain(query.expr, DASHBOARDS[name])}
        for number, query in enumerate(queries(name))
    ]
    assert recorded
    # JSON is YAML
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": name, "rules": recorded}]}), encoding="utf-8")
    done = promtool("check", "rules", "rules.yml", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
