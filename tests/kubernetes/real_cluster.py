"""A real cluster for a module of tests, and what is done with it. `make kubernetes` builds what it needs first."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from deploy.kubernetes.cluster.layout import Layout

LAYOUT = Layout.of_user()
CLUSTER = [sys.executable, "-m", "deploy.kubernetes.cluster"]
NAMESPACE = "proof"
_IMAGES = Path("dist/images")
_CGROUPS = Path("/sys/fs/cgroup/memory")


@contextmanager
def running_cluster(*names: str, nodes: int = 2) -> Iterator[Callable[..., str]]:
    """Nodes with the images of these names; the function calls kubectl in a namespace of restricted admission.

    A cluster that runs already is used, with the images that it has, and goes on.
    """
    images = [path for name in names for path in sorted(_IMAGES.glob(f"waybill-{name}_*.tar"))]
    if len(images) < len(names) or not Path(LAYOUT.program("hk")).exists() or os.geteuid() != 0:
        pytest.skip("`make kubernetes`, as root, builds what this needs")
    ours = not LAYOUT.state.exists()
    if ours:
        given = [word for path in images for word in ("--image", str(path))]
        subprocess.run([*CLUSTER, "up", "--nodes", str(nodes), *given], timeout=500, check=True)
    try:
        kubectl("create", "namespace", NAMESPACE)
        kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")
        yield kubectl
    finally:
        if ours:
            subprocess.run([*CLUSTER, "down"], timeout=120, check=True)
        else:
            kubectl("delete", "namespace", NAMESPACE)


def kubectl(*words: str, given: object = None) -> str:
    return _run("kubectl", *words, given=json.dumps(given) if given else None)


def helm(*words: str, values: object = None) -> str:
    return _run("helm", *words, *(["-f", "-"] if values else []), given=json.dumps(values))


def _run(program: str, *words: str, given: str | None) -> str:
    command = [LAYOUT.program(program), "--kubeconfig", f"{LAYOUT.keys}/admin.conf", "-n", NAMESPACE, *words]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=180, check=False)
    assert not done.returncode, done.stderr
    return done.stdout


def seconds_until(holds: Callable[[], bool], at_most_s: float) -> float:
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < at_most_s
        time.sleep(0.3)
    return time.monotonic() - began


def pods(labels: str) -> list[dict[str, Any]]:
    """Those that are not on their way out."""
    listed = json.loads(kubectl("get", "pods", "-l", labels, "-o", "json"))["items"]
    return [pod for pod in listed if "deletionTimestamp" not in pod["metadata"]]


def kill_processes(pod: dict[str, Any]) -> None:
    """Kill -9 all processes of a pod's containers, as the kernel does when memory ends."""
    subprocess.run(["kill", "-9", *map(str, _processes(pod["metadata"]["uid"]))], check=False)


def _processes(uid: str) -> list[int]:
    found = []
    for file in _CGROUPS.glob(f"wb-n*/kubepods/**/pod{uid}/*/cgroup.procs"):
        numbers = [int(line) for line in file.read_text(encoding="ascii").split()]
        # the container that only holds the pod's network
        if numbers and not Path(f"/proc/{numbers[0]}/cmdline").read_bytes().startswith(b"/pause"):
            found += numbers
    assert found, "the pod has no process"
    return found
