"""What happens to the installation while the vehicles drive: killed pods, upgrades, and nodes that end."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from deploy.demo.audit import Verdict
from deploy.kubernetes.cluster.layout import CONTROL_NAMESPACE, Layout, Node
from deploy.kubernetes.cluster.nodes import power_on
from deploy.kubernetes.cluster.processes import ClusterError, Processes, run
from deploy.kubernetes.demo.office import CENTRE, REGION
from deploy.kubernetes.demo.tools import Namespace
from deploy.packages.__main__ import VERSION

_CHARTS = Path(__file__).parents[2] / "helm"
_CHART_OF = {REGION: "waybill-region", CENTRE: "waybill-centre"}
_NEXT = "next"
"""A second tag of the same images."""
_OUT_OF_SERVICE = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
_ELSEWHERE_S = 60.0
_AT_MOST_S = 180.0
_LOOK_S = 0.5


@dataclass
class Site:
    """Both releases with their values, and what was found about them while the vehicles drove."""

    namespace: Namespace
    layout: Layout
    values: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)
    lost: Node | None = None
    lost_at: float = 0.0

    def helm(self, verb: str, release: str, *options: str) -> None:
        chart = str(_CHARTS / _CHART_OF[release])
        self.namespace.helm(verb, release, chart, *options, values=self.values[release])

    def pods(self, release: str, component: str) -> list[dict[str, Any]]:
        """Those that are not on their way out."""
        labels = f"app.kubernetes.io/instance={release},app.kubernetes.io/component={component}"
        listed = json.loads(self.namespace.kubectl("get", "pods", "-l", labels, "-o", "json"))["items"]
        return [one for one in listed if "deletionTimestamp" not in one["metadata"]]

    def node(self, name: str) -> Node:
        return self.layout.node(int(name.removeprefix("n")))


Act = Callable[[Site], str]
"""Does something, and says what."""


@dataclass(frozen=True)
class Acts:
    """At which share of the drive each happens. `late_s`: the longest wait for an acknowledgement that is right.

    `spares_pulsar`: Pulsar, which has one server for each cluster here, gets the last node for itself.
    """

    at: Mapping[float, Act]
    late_s: float = 30.0
    spares_pulsar: bool = False

    @property
    def nodes(self) -> int:
        """So many are needed."""
        return 3 if self.spares_pulsar else 1


def _killed(release: str, component: str) -> Act:
    def kill(site: Site) -> str:
        pod = site.pods(release, component)[0]["metadata"]["name"]
        site.namespace.kubectl("delete", "pod", pod, "--grace-period=0", "--force", "--wait=false")
        return f"killed {pod}"

    return kill


def _upgraded(release: str, *options: str) -> Act:
    def upgrade(site: Site) -> str:
        site.helm("upgrade", release, *options)
        return f"helm upgrade {release} {' '.join(options)}"

    return upgrade


def _tagged(site: Site) -> str:
    for number in range(1, Processes.recorded(site.layout).nodes + 1):
        for name in ("waybill-gateway", "waybill-centre"):
            tag = ("images", "tag", "--force", f"localhost/{name}:{VERSION}", f"localhost/{name}:{_NEXT}")
            run("ctr", "-a", str(site.layout.node(number).socket), "-n", "k8s.io", *tag)
    return f"both images have another tag, {_NEXT}"


def _rolled_back(site: Site) -> str:
    site.namespace.helm("rollback", REGION)
    return f"helm rollback {REGION}"


def _drained(site: Site) -> str:
    node = site.pods(REGION, "gateway")[0]["spec"]["nodeName"]
    site.namespace.kubectl("drain", node, "--delete-emptydir-data", "--ignore-daemonsets", "--force", "--timeout=120s")
    site.namespace.kubectl("uncordon", node)
    return f"drained {node}"


def _cut(seconds: float) -> Act:
    """The network of a gateway's node."""

    def cut(site: Site) -> str:
        node = site.pods(REGION, "gateway")[0]["spec"]["nodeName"]
        for state in ("down", "up"):
            run("ip", "-n", CONTROL_NAMESPACE, "link", "set", f"v{node}", state)
            time.sleep(seconds if state == "down" else 0)
        run("ip", "-n", CONTROL_NAMESPACE, "route", "replace", site.node(node).pods, "via", site.node(node).address)
        return f"{node} had no network for {seconds:.0f} s"

    return cut


def _power_cut(site: Site) -> str:
    """The node of the ingest ends; an operator who knows it says so by a taint."""
    name = site.pods(CENTRE, "ingest")[0]["spec"]["nodeName"]
    site.lost, site.lost_at = site.node(name), time.monotonic()
    Processes.recorded(site.layout).end(name, signal.SIGKILL)
    site.namespace.kubectl("taint", "node", name, _OUT_OF_SERVICE)
    return f"{name}, with the ingest, lost its power"


def _elsewhere(site: Site) -> str:
    """Waits until the ingest is ready on another node, and gives the lost one its power back."""
    lost = site.lost
    assert lost is not None, "a node was lost"
    while not any(_is_ready(one) and one["spec"]["nodeName"] != lost.name for one in site.pods(CENTRE, "ingest")):
        if time.monotonic() - site.lost_at > _AT_MOST_S:
            raise ClusterError(f"the ingest is not ready elsewhere {_AT_MOST_S:.0f} s after {lost.name} was lost")
        time.sleep(_LOOK_S)
    after_s = time.monotonic() - site.lost_at
    site.verdicts.append(
        Verdict("the ingest of a lost node is ready on another", f"{after_s:.0f} s", after_s <= _ELSEWHERE_S)
    )
    power_on(lost, Processes.recorded(site.layout))
    site.namespace.kubectl("taint", "node", lost.name, f"{_OUT_OF_SERVICE}-")
    return f"the ingest was ready elsewhere after {after_s:.0f} s; {lost.name} has its power back"


def _is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = {one["type"]: one["status"] for one in pod["status"].get("conditions", ())}
    return conditions.get("Ready") == "True"


class What(StrEnum):
    """What happens on the way."""

    KILLS = "kills"
    UPGRADES = "upgrades"
    NODES = "nodes"


ACTS = {
    What.KILLS: Acts(
        {0.2: _killed(REGION, "broker"), 0.45: _killed(REGION, "gateway"), 0.7: _killed(CENTRE, "ingest")}
    ),
    What.UPGRADES: Acts(
        {
            0.0: _tagged,
            0.1: _upgraded(REGION, "--set", "gateway.logLevel=debug"),
            0.3: _upgraded(REGION, "--set", f"image.tag={_NEXT}"),
            0.6: _upgraded(CENTRE, "--set", f"image.tag={_NEXT}"),
            0.8: _rolled_back,
        }
    ),
    What.NODES: Acts(
        {0.1: _drained, 0.4: _cut(20), 0.7: _power_cut, 0.9: _elsewhere}, late_s=120.0, spares_pulsar=True
    ),
}
