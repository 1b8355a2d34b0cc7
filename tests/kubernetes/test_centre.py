"""The centre's chart on a real cluster: on one node, on two, and while a driver and an executor are killed."""

import json
import subprocess
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cloud_jobs.lake.location import Location
from cloud_jobs.lake.tables import Lake
from tests.kubernetes.real_cluster import helm, kill_processes, kubectl, pods, running_cluster, seconds_until
from tests.system.lake_of_fixes import NOON, LakeFix, ingest, lake_of

pytestmark = pytest.mark.nightly

CHART = "deploy/helm/waybill-centre"
LAPTOP = f"{CHART}/values-laptop.yaml"
DEVICES, FIXES = 60, 500
JOB = "app.kubernetes.io/component=proximity"
EXECUTORS = f"{JOB}-executor"
DRIVER_S = 300
RUN_S = 600
# The job that needs no Pulsar until it has something to publish.
VALUES: dict[str, Any] = {
    "settings": {"proximity": {"interval_s": 2}, "spark": {"shuffle_partitions": 4}},
    "jobs": {
        name: {"enabled": name == "proximity"} for name in ("ingest", "usage", "geofence", "proximity", "maintain")
    },
    "console": {"enabled": False},
}
ON_TWO_NODES = VALUES | {
    "spark": {
        "mode": "kubernetes",
        "executors": {"memory": "600m", "memoryOverhead": "600m", "cpu": "100m"},
    },
    "networkPolicy": {"egressPorts": [443, 6443]},
}


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[Callable[..., str]]:
    with running_cluster("centre") as running:
        yield running


def new_lake(name: str) -> Path:
    """A claim with a lake of devices that pass each other, as pods see it; returns its folder."""
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    kubectl("apply", "-f", "-", given=claim)
    seconds_until(lambda: kubectl("get", "pvc", name, "-o", "jsonpath={.status.phase}") == "Bound", 30)
    volume = kubectl("get", "pvc", name, "-o", "jsonpath={.spec.volumeName}")
    folder = Path(kubectl("get", "pv", volume, "-o", "jsonpath={.spec.hostPath.path}"))
    lake = lake_of(folder / "lake")
    for row in range(0, DEVICES, 20):
        ingest(lake, [fix(device, seq) for device in range(row, row + 20) for seq in range(FIXES)])
    subprocess.run(["chown", "-R", "10001:10001", folder / "lake"], check=True)
    return folder / "lake"


def fix(device: int, seq: int) -> LakeFix:
    """One street for 20 devices, each 5 % faster than the last."""
    street, speed = device // 20, 1 + device % 20 * 0.05
    time = NOON + timedelta(seconds=20 * seq)
    return LakeFix(f"van-{device:04}", seq + 1, time, 0.005 + street * 0.01, seq * speed % 1200 / 40_000)


def encounters(lake: Path) -> list[str]:
    """All rows, but for when they were made."""
    rows = Lake(Location.of(lake)).rows("encounters").to_pylist()
    made = {"computed_at", "emitted_at"}
    return sorted(str({name: value for name, value in row.items() if name not in made}) for row in rows)


def log() -> str:
    return kubectl("logs", "deployment/hq-proximity")


@pytest.fixture(scope="module")
def on_one_node(cluster: Callable[..., str]) -> Iterator[list[str]]:
    """What a job computes by itself; the console goes on beside it."""
    assert cluster is kubectl
    lake = new_lake("laptop")
    values = VALUES | {"storage": {"existingClaim": "laptop"}, "console": {"enabled": True}}
    helm("install", "laptop", CHART, "-f", LAPTOP, values=values)
    seconds_until(lambda: bool(encounters(lake)), RUN_S)
    kubectl("scale", "deployment/laptop-proximity", "--replicas=0")
    yield encounters(lake)
    helm("uninstall", "laptop", "--wait")


def test_a_job_and_the_console_run_on_one_node(on_one_node: list[str]) -> None:
    assert on_one_node
    page = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:8090/events').read().decode())"
    shown = kubectl("exec", "deployment/laptop-console", "--", "/opt/waybill/bin/python", "-c", page)
    assert "van-0001" in shown


def test_executors_and_the_driver_are_killed_and_the_rows_are_those_of_one_node(on_one_node: list[str]) -> None:
    lake = new_lake("shared")
    helm("install", "hq", CHART, "-f", LAPTOP, values=ON_TWO_NODES | {"storage": {"existingClaim": "shared"}})
    seconds_until(lambda: len(pods(EXECUTORS)) == 2, DRIVER_S)
    seconds_until(lambda: "executors ready" in log(), DRIVER_S)
    before = {pod["metadata"]["name"] for pod in pods(EXECUTORS)}
    assert {pod["spec"]["nodeName"] for pod in pods(EXECUTORS)} == {"n1", "n2"}
    kill_processes(pods(EXECUTORS)[0])
    seconds_until(lambda: len({pod["metadata"]["name"] for pod in pods(EXECUTORS)} - before) == 1, 60)
    (driver,) = pods(JOB)
    assert not encounters(lake), "the run ended too early for this test"
    kill_processes(driver)
    seconds_until(lambda: restarts() == 1 and "executors ready" in log(), DRIVER_S)
    assert len(pods(EXECUTORS)) == 2, "what the first driver left is deleted"
    seconds_until(lambda: bool(encounters(lake)), RUN_S)
    assert encounters(lake) == on_one_node
    helm("uninstall", "hq", "--wait")
    assert "Bound" in kubectl("get", "pvc", "shared")
    seconds_until(lambda: pods(EXECUTORS) == [], 60)


def restarts() -> int:
    listed = json.loads(kubectl("get", "pods", "-l", JOB, "-o", "json"))["items"]
    return sum(pod["status"]["containerStatuses"][0]["restartCount"] for pod in listed)
