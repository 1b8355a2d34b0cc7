"""On a real cluster of two nodes: images under restricted admission, a region's chart, and what a killed node does.

`make kubernetes` builds the images and the programs first.
"""

import json
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from deploy.kubernetes.cluster.processes import Processes
from tests.kubernetes.real_cluster import CLUSTER, LAYOUT, helm, running_cluster, seconds_until

pytestmark = pytest.mark.nightly

CHART = "deploy/helm/waybill-region"
VALUES = {
    "region": "eu",
    "mqtt": {"host": "broker.eu.example"},
    "pulsar": {"serviceUrl": "pulsar+ssl://pulsar.eu.example:6651"},
    "tenants": {"acme": {"max_batches_per_s": 500}, "other": {}},
}
TLS_FILES = ("ca.pem", "certificate.pem", "key.pem", "share")
REGION_FILES = ("pulsar-ca.pem", "gateway.token", "operators.toml")
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Callable[..., str]]:
    with running_cluster("gateway") as running:
        yield running


def gateway(*arguments: str) -> dict[str, Any]:
    return {
        "name": "gateway",
        "image": "localhost/waybill-gateway:0.1.0",
        "args": [*arguments],
        "securityContext": RESTRICTED,
    }


def test_a_gateway_without_settings_ends_and_says_why(cluster: Callable[..., str]) -> None:
    spec = {"restartPolicy": "Never", "containers": [gateway("run", "--config", "/none.toml")]}
    cluster("apply", "-f", "-", given={"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "lost"}, "spec": spec})
    seconds_until(lambda: cluster("get", "pod", "lost", "-o", "jsonpath={.status.phase}") == "Failed", 60)
    assert cluster("logs", "lost") == "/none.toml: cannot be read: there is no such file or folder\n"
    code = "jsonpath={.status.containerStatuses[0].state.terminated.exitCode}"
    assert cluster("get", "pod", "lost", "-o", code) == "78"


@pytest.fixture(scope="module")
def keys(cluster: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> None:
    """The Secrets of a region, from the commands that an operator runs; its broker and its Pulsar do not exist."""
    folder = tmp_path_factory.mktemp("office")

    def waybill(*words: str) -> None:
        command = [sys.executable, "-m", "waybill", *words]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
        assert not done.returncode, done.stdout + done.stderr

    waybill("pki", "init", "--name", "Acme root")
    waybill("pki", "pulsar")
    waybill("pki", "region", "eu", "--servers", "broker.eu.example")
    waybill("push", "key", "anna", "--tenant", "acme", "--kind", "device")
    (folder / "gateway.token").write_text("none", encoding="ascii")
    files = {"pulsar-ca.pem": "pki/pulsar-authority/root.pem", "gateway.token": "gateway.token"}
    files["operators.toml"] = "operators.toml"
    given = [f"--from-file={name}={folder / path}" for name, path in files.items()]
    cluster("create", "secret", "generic", "waybill-region", *given)
    for number in (0, 1):
        waybill("pki", "issue", f"gateway@eu-{number}", "--region", "eu", "--out", f"tls/{number}")
        made = [f"--from-file={name}={folder}/tls/{number}/{name}" for name in TLS_FILES]
        cluster("create", "secret", "generic", f"waybill-gateway-{number}", *made)


@pytest.mark.usefixtures("keys")
def test_gateways_of_a_chart_run_and_are_not_ready_without_pulsar(cluster: Callable[..., str]) -> None:
    helm("install", "eu", CHART, values=VALUES)
    files = json.loads(cluster("get", "configmap", "eu-gateway", "-o", "json"))["data"]
    settings = tomllib.loads(files["eu-gateway-1.toml"])
    assert (settings["name"], settings["tenants"]) == ("eu-1", {"acme": {"max_batches_per_s": 500}, "other": {}})

    def pods() -> dict[str, dict[str, Any]]:
        listed = json.loads(cluster("get", "pods", "-l", "app.kubernetes.io/instance=eu", "-o", "json"))["items"]
        return {pod["metadata"]["name"]: pod for pod in listed}

    def started() -> bool:
        states = [pod["status"].get("containerStatuses", [{}])[0] for pod in pods().values()]
        return len(states) == 2 and all(one.get("started") for one in states)

    seconds_until(started, 60)
    assert {pod["spec"]["nodeName"] for pod in pods().values()} == {"n1", "n2"}
    assert not any(pod["status"]["containerStatuses"][0]["ready"] for pod in pods().values())
    why = "no producer from pulsar+ssl://pulsar.eu.example:6651"
    seconds_until(lambda: why in cluster("logs", "eu-gateway-0"), 30)
    restarts = [pod["status"]["containerStatuses"][0]["restartCount"] for pod in pods().values()]
    assert restarts == [0, 0], "what is missing elsewhere is no reason to start again"


@pytest.mark.usefixtures("keys")
def test_a_gateway_with_a_wrong_secret_never_becomes_ready_and_says_why(cluster: Callable[..., str]) -> None:
    cluster("create", "secret", "generic", "waybill-wrong", *(f"--from-literal={name}=x" for name in REGION_FILES))
    helm("install", "wrong", CHART, values=VALUES | {"secrets": {"region": "waybill-wrong"}})

    def ended() -> bool:
        found = json.loads(cluster("get", "pod", "wrong-gateway-0", "-o", "json"))["status"]
        return bool(found.get("containerStatuses", [{}])[0].get("lastState", {}).get("terminated"))

    seconds_until(ended, 60)
    seconds_until(lambda: "operators.toml" in cluster("logs", "wrong-gateway-0"), 60)
    ready = "jsonpath={.status.containerStatuses[0].ready}"
    assert cluster("get", "pod", "wrong-gateway-0", "-o", ready) == "false"
    helm("uninstall", "wrong")


def test_a_pod_of_a_dead_node_runs_elsewhere_within_40_seconds(cluster: Callable[..., str]) -> None:
    """A Deployment's pod, with tolerations of 10 s: its node is killed as by a power cut."""
    labels = {"app": "sleeper"}
    tolerations = [
        {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 10}
        for key in ("not-ready", "unreachable")
    ]
    container = gateway() | {"command": ["/opt/waybill/bin/python", "-c", "import time; time.sleep(3600)"]}
    template = {"metadata": {"labels": labels}, "spec": {"tolerations": tolerations, "containers": [container]}}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    made = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "sleeper"}, "spec": spec}
    cluster("apply", "-f", "-", given=made)

    def running_on() -> set[str]:
        pods = json.loads(cluster("get", "pods", "-l", "app=sleeper", "-o", "json"))["items"]
        alive = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        return {pod["spec"]["nodeName"] for pod in alive if pod["status"]["phase"] == "Running"}

    seconds_until(lambda: len(running_on()) == 1, 60)
    (first,) = running_on()
    process = Processes.recorded(LAYOUT).alive(first)
    assert isinstance(process, psutil.Process)
    process.send_signal(signal.SIGKILL)
    other = {"n1", "n2"} - {first}
    assert seconds_until(lambda: running_on() == other, 60) <= 40
    subprocess.run([*CLUSTER, "power-on", first.removeprefix("n")], timeout=60, check=True)
    seconds_until(lambda: cluster("get", "nodes", "--no-headers").count(" Ready ") == 2, 90)
