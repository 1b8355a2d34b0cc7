"""Each chart with each of its files of values: lint, Kubernetes' schemas, laws. `make check` builds helm first."""

import copy
import re
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from deploy.kubernetes.cluster.layout import Layout
from gateway.access.config import AccessSettings
from gateway.alerts.config import AlertSettings
from gateway.canary.config import CanarySettings
from gateway.config import GatewaySettings
from tests.deploy.kubernetes.chart_laws import faults
from waybill.settings import Settings, parse

CHARTS = Path(__file__).resolve().parents[3] / "deploy" / "helm"
HELM = Layout.of_user().program("helm")
KUBERNETES = "1.33"
RELEASE = "trial"
_NOT_VALUES = {"Chart.yaml", "Chart.lock", "values.yaml"}
CASES = [
    (chart.parent.name, str(path.relative_to(chart.parent)))
    for chart in sorted(CHARTS.glob("*/Chart.yaml"))
    for path in sorted(chart.parent.rglob("*.yaml"))
    if path.name not in _NOT_VALUES and not {"templates", "files", "charts", "crds"} & set(path.parts)
]
EACH = pytest.mark.parametrize(("chart", "values"), CASES)
WITHOUT_SCHEMA = {
    "monitoring.coreos.com/v1": "resources of the Prometheus Operator, whose schemas the package does not have",
    "sparkoperator.k8s.io/v1beta2": "resources of the Spark operator, whose schemas the package does not have",
}
"""The groups that are not checked, each with its reason."""

pytestmark = pytest.mark.skipif(not Path(HELM).exists(), reason="`make check` builds helm")


def helm(*words: str) -> str:
    done = subprocess.run([HELM, *words], capture_output=True, text=True, timeout=60, check=False)
    assert not done.returncode, done.stdout + done.stderr
    return done.stdout


@cache
def rendered(chart: str, values: str) -> tuple[dict[str, Any], ...]:
    folder = CHARTS / chart
    text = helm("template", RELEASE, str(folder), "-f", str(folder / values), "--kube-version", KUBERNETES)
    return tuple(one for one in yaml.safe_load_all(text) if one)


@cache
def is_valid(text: str) -> bool:
    """Strict: an unknown field is refused. Raises ValidationError."""
    one = yaml.safe_load(text)
    kubernetes_validate.validate(one, KUBERNETES, strict=True)
    return True


def test_each_chart_has_values_to_be_tried_with() -> None:
    assert {chart for chart, _ in CASES} == {path.parent.name for path in CHARTS.glob("*/Chart.yaml")}


@EACH
def test_helm_finds_nothing_to_say(chart: str, values: str) -> None:
    folder = CHARTS / chart
    helm("lint", "--strict", str(folder), "-f", str(folder / values), "--kube-version", KUBERNETES)


@EACH
def test_objects_are_valid_for_kubernetes_and_keep_our_laws(chart: str, values: str) -> None:
    objects = rendered(chart, values)
    assert faults(objects, RELEASE) == []
    assert all(is_valid(yaml.safe_dump(one)) for one in objects if one["apiVersion"] not in WITHOUT_SCHEMA)


SETTINGS: dict[str, type[Settings]] = {
    r".*-gateway-\d+\.toml": GatewaySettings,
    r"access\.toml": AccessSettings,
    r"alerts\.toml": AlertSettings,
    r"canary\.toml": CanarySettings,
}
"""By names of files in a region's ConfigMaps: what reads them."""


@EACH
def test_programs_take_the_settings_that_a_chart_makes(chart: str, values: str) -> None:
    maps = [one for one in rendered(chart, values) if one["kind"] == "ConfigMap"]
    for name, text in [item for one in maps for item in one["data"].items()]:
        for pattern, model in SETTINGS.items():
            assert not re.fullmatch(pattern, name) or parse(model, text, name)


def test_rules_are_those_of_prometheus() -> None:
    objects = rendered("waybill-region", "values-three-zones.yaml")
    text = (CHARTS.parent / "prometheus" / "waybill-rules.yml").read_text(encoding="utf-8")
    assert [one["spec"] for one in objects if one["kind"] == "PrometheusRule"] == [yaml.safe_load(text)]


def _template(objects: list[dict[str, Any]]) -> Any:
    return next(one for one in objects if one["kind"] == "StatefulSet")["spec"]["template"]


def _container(objects: list[dict[str, Any]]) -> Any:
    return _template(objects)["spec"]["containers"][0]


def _without(kind: str) -> Callable[[list[dict[str, Any]]], None]:
    def remove(objects: list[dict[str, Any]]) -> None:
        objects[:] = [one for one in objects if one["kind"] != kind]

    return remove


def _change(kind: str, /, **members: Any) -> Callable[[list[dict[str, Any]]], None]:
    return lambda objects: next(one for one in objects if one["kind"] == kind).update(members)


@pytest.mark.parametrize(
    ("harm", "fault"),
    [
        (lambda objects: _template(objects)["spec"].pop("tolerations"), "stays for five minutes"),
        (lambda objects: _template(objects)["spec"].update(hostNetwork=True), "shares a namespace"),
        (lambda objects: _template(objects)["spec"].pop("securityContext"), "may run as root"),
        (lambda objects: _template(objects)["spec"]["volumes"].append({"name": "x", "hostPath": {}}), "volume x"),
        (lambda objects: _template(objects)["spec"].pop("serviceAccountName"), "no account"),
        (lambda objects: _template(objects)["spec"].update(automountServiceAccountToken=True), "has a token"),
        (lambda objects: _template(objects)["metadata"].pop("annotations"), "old settings"),
        (lambda objects: _container(objects)["securityContext"].pop("readOnlyRootFilesystem"), "too many rights"),
        (lambda objects: _container(objects)["securityContext"].pop("capabilities"), "keeps capabilities"),
        (lambda objects: _container(objects).pop("resources"), "no requests"),
        (lambda objects: _container(objects).pop("livenessProbe"), "is not probed"),
        (lambda objects: _container(objects).update(livenessProbe=_container(objects)["readinessProbe"]), "again"),
        (_without("NetworkPolicy"), "no NetworkPolicy"),
        (_without("PodDisruptionBudget"), "has 0 PodDisruptionBudgets"),
        (_change("PodDisruptionBudget", spec={"selector": {}}), "from being drained"),
        (_change("ConfigMap", data={"a.toml": 'token = "abc"'}), "has a secret"),
        (_change("ConfigMap", kind="Secret"), "history"),
        (_change("ConfigMap", kind="Pod"), "nobody starts it elsewhere"),
        (_change("ConfigMap", kind="ClusterRole"), "beyond its namespace"),
        (_change("ConfigMap", metadata={"name": "Other", "labels": {}}), "not lower-case"),
    ],
)
def test_each_law_finds_its_fault(harm: Callable[[list[dict[str, Any]]], None], fault: str) -> None:
    region = next(case for case in CASES if case[0] == "waybill-region")
    objects = copy.deepcopy(list(rendered(*region)))
    harm(objects)
    assert fault in "\n".join(faults(objects, RELEASE))


def test_a_misspelt_field_and_an_unknown_value_are_refused() -> None:
    with pytest.raises(kubernetes_validate.ValidationError, match="replica"):
        is_valid("{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}, spec: {replica: 1}}")
    for chart, values in dict(CASES).items():
        with pytest.raises(AssertionError, match="nonsense"):
            helm("template", RELEASE, str(CHARTS / chart), "-f", str(CHARTS / chart / values), "--set", "nonsense=1")
