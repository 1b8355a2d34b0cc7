"""On a real cluster of two nodes: images under restricted admission, and what a killed node does to its pods.

`make kubernetes` builds the images and the programs first.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from deploy.kubernetes.cluster.layout import Layout
from deploy.kubernetes.cluster.processes import Processes

pytestmark = pytest.mark.nightly

LAYOUT = Layout.of_user()
IMAGES = Path("dist/images")
CLUSTER = [sys.executable, "-m", "deploy.kubernetes.cluster"]
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Callable[..., str]]:
    """A cluster with the gateway's image; the function calls kubectl in a namespace of restricted admission."""
    images = sorted(IMAGES.glob("waybill-gateway_*.tar"))
    if not images or not Path(LAYOUT.program("hk")).exists() or os.geteuid() != 0:
        pytest.skip("`make kubernetes`, as root, builds what this needs")
    subprocess.run([*CLUSTER, "up", "--nodes", "2", "--image", str(images[0])], timeout=400, check=True)

    def kubectl(*words: str, given: object = None) -> str:
        command = [LAYOUT.program("kubectl"), "--kubeconfig", f"{LAYOUT.keys}/admin.conf", "-n", "proof", *words]
        text = json.dumps(given) if given else None
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, check=False)
        assert not done.returncode, done.stderr
        return done.stdout

    try:
        kubectl("create", "namespace", "proof")
        kubectl("label", "namespace", "proof", "pod-security.kubernetes.io/enforce=restricted")
        yield kubectl
    finally:
        subprocess.run([*CLUSTER, "down"], timeout=120, check=True)


def seconds_until(holds: Callable[[], bool], at_most_s: float) -> float:
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < at_most_s
        time.sleep(0.3)
    return time.monotonic() - began


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
