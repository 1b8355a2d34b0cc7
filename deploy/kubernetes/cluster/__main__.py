"""`python -m deploy.kubernetes.cluster`: `up`, `down`, `status`, `power-on NODE`."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from deploy.kubernetes.cluster.certificates import Authority
from deploy.kubernetes.cluster.control_plane import VOLUMES, start_control_plane
from deploy.kubernetes.cluster.layout import CONTROL_NAMESPACE, MOST_NODES, Layout
from deploy.kubernetes.cluster.nodes import power_on, remove_node, start_node
from deploy.kubernetes.cluster.processes import ClusterError, Processes, remove, run

app = typer.Typer(help=__doc__, no_args_is_help=True, pretty_exceptions_enable=False)

_PROGRAMS = ("hk", "helm", "coredns", "kube-router")
_READY_S = 180.0
_GROUPS_END_S = 10.0


@app.command()
def up(
    nodes: Annotated[int, typer.Option(min=1, max=MOST_NODES, help="each in a zone of its own")] = 2,
    image: Annotated[list[Path] | None, typer.Option(exists=True, help="archives that each node loads")] = None,
) -> None:
    """Start a cluster from nothing, and wait until its nodes are ready.

    Example: python -m deploy.kubernetes.cluster up --nodes 3 --image dist/images/waybill-gateway_0.1.0_amd64.tar
    """
    layout = Layout.of_user()
    if os.geteuid() != 0:
        raise ClusterError("namespaces and cgroups need root: run it as root")
    if layout.state.exists():
        raise ClusterError("a cluster runs already, or was not ended: `python -m deploy.kubernetes.cluster down`")
    if missing := [name for name in _PROGRAMS if not Path(layout.program(name)).exists()]:
        raise ClusterError(f"{', '.join(missing)} is missing: run `make kubernetes-tools`")
    shutil.rmtree(layout.run, ignore_errors=True)
    layout.logs.mkdir(parents=True)
    processes = Processes(layout, nodes)
    processes.record()
    try:
        authority = Authority.in_folder(layout.keys)
        start_control_plane(layout, processes, authority)
        for number in range(1, nodes + 1):
            start_node(layout.node(number), processes, authority, [path.resolve() for path in image or []])
        _wait_until_ready(layout, nodes)
    except BaseException:
        _end(layout, processes)
        raise
    sys.stdout.write(f"export KUBECONFIG={layout.keys}/admin.conf\n")


@app.command()
def down(*, keep: Annotated[bool, typer.Option(help="keep logs and volumes")] = False) -> None:
    """End the cluster's processes, and remove its namespaces, cgroups and files."""
    layout = Layout.of_user()
    _end(layout, Processes.recorded(layout))
    if not keep:
        shutil.rmtree(layout.run, ignore_errors=True)
        shutil.rmtree(VOLUMES, ignore_errors=True)


@app.command()
def status() -> None:
    """Each process of the cluster and whether it runs; exit status 1 if one does not."""
    processes = Processes.recorded(Layout.of_user())
    ended = [name for name in processes.started if processes.alive(name) is None]
    for name in processes.started:
        sys.stdout.write(f"{name}: {'ended' if name in ended else 'runs'}\n")
    raise typer.Exit(1 if ended else 0)


@app.command("power-on")
def power_on_again(number: Annotated[int, typer.Argument(min=1, max=MOST_NODES)]) -> None:
    """Start a node again whose process was killed."""
    layout = Layout.of_user()
    processes = Processes.recorded(layout)
    if processes.alive(f"n{number}") is not None:
        raise ClusterError(f"node n{number} runs")
    power_on(layout.node(number), processes)


def _wait_until_ready(layout: Layout, nodes: int) -> None:
    kubectl = (layout.program("hk"), "kubectl", "--kubeconfig", str(layout.keys / "admin.conf"))
    ends_at = time.monotonic() + _READY_S
    while True:
        lines = run(*kubectl, "get", "nodes", "--no-headers", check=False).splitlines()
        if sum(line.split()[1] == "Ready" for line in lines) == nodes:
            return
        if time.monotonic() > ends_at:
            raise ClusterError(f"not all nodes were ready within {_READY_S:.0f} s; logs are in {layout.logs}")
        time.sleep(1)


def _end(layout: Layout, processes: Processes) -> None:
    """Nodes first: what they run would otherwise wait for the API server."""
    for number in range(1, processes.nodes + 1):
        processes.end(f"n{number}", signal.SIGKILL)
    for name in list(processes.started):
        processes.end(name)
    for number in range(1, processes.nodes + 1):
        _remove_node(layout, number)
    run("ip", "netns", "del", CONTROL_NAMESPACE, check=False)
    remove(layout.state)


def _remove_node(layout: Layout, number: int) -> None:
    """A cgroup can be removed some moments after its last process has ended."""
    node = layout.node(number)
    ends_at = time.monotonic() + _GROUPS_END_S
    while True:
        try:
            remove_node(layout, number)
            break
        except OSError as error:
            if time.monotonic() > ends_at:
                raise ClusterError(f"node {node.name}: {error}") from error
            time.sleep(0.3)
    remove(node.socket)
    remove(Path(f"{node.socket}.ttrpc"))
    for folder in (f"/run/{node.namespace}", f"/run/{node.namespace}-ipam"):
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    try:
        app()
    except ClusterError as error:
        sys.stderr.write(f"cluster: {error}\n")
        raise SystemExit(1) from error
