"""Nodes: containerd, kubelet, kube-proxy and the firewall of NetworkPolicies, each node in namespaces of its own."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deploy.kubernetes.cluster.certificates import Authority
from deploy.kubernetes.cluster.layout import CONTROL_ADDRESS, CONTROL_NAMESPACE, PODS, SERVICES, Layout, Node
from deploy.kubernetes.cluster.processes import Processes, run

_CGROUPS = Path("/sys/fs/cgroup")


def start_node(node: Node, processes: Processes, authority: Authority, images: Sequence[Path]) -> None:
    """Make a node's network and folders and start it. Raises ClusterError."""
    authority.access_file(node.name, f"system:node:{node.name}", "system:nodes")
    _make_network(node)
    _make_cgroups(node)
    for name in ("cni", "kubelet", "logs"):
        (node.folder / name).mkdir(parents=True, exist_ok=True)
    (node.folder / "containerd.toml").write_text(containerd_settings(node), encoding="utf-8")
    (node.folder / "cni" / "10.conflist").write_text(json.dumps(pod_network(node)), encoding="utf-8")
    (node.folder / "kubelet.yaml").write_text(json.dumps(kubelet_settings(node)), encoding="utf-8")
    (node.folder / "start.sh").write_text(start_script(node, images), encoding="utf-8")
    power_on(node, processes)


def power_on(node: Node, processes: Processes) -> None:
    """Start a node whose folders exist, also after its process was killed: with it, all of its processes end."""
    command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    processes.start(node.name, [*command, "bash", str(node.folder / "start.sh")], namespace=node.namespace)


def _make_network(node: Node) -> None:
    run("ip", "netns", "add", node.namespace)
    link = ("type", "veth", "peer", "name", "eth0", "netns", node.namespace)
    run("ip", "-n", CONTROL_NAMESPACE, "link", "add", f"v{node.name}", *link)
    run("ip", "-n", CONTROL_NAMESPACE, "link", "set", f"v{node.name}", "master", "br0", "up")
    run("ip", "-n", CONTROL_NAMESPACE, "route", "add", node.pods, "via", node.address)
    for words in (
        ("link", "set", "lo", "up"),
        ("addr", "add", f"{node.address}/24", "dev", "eth0"),
        ("link", "set", "eth0", "up"),
        ("route", "add", "default", "via", CONTROL_ADDRESS),
    ):
        run("ip", "-n", node.namespace, *words)
    run("sysctl", "-qw", "net.ipv4.ip_forward=1", namespace=node.namespace)


def cgroups(node: Node) -> list[Path]:
    """The node's cgroup under each controller of cgroup v1, and in the tree of cgroup v2 that containerd uses too."""
    return [one / node.namespace for one in sorted(_CGROUPS.iterdir()) if one.is_dir()]


def _make_cgroups(node: Node) -> None:
    for group in cgroups(node):
        if group.parent.name == "unified":
            continue
        group.mkdir(exist_ok=True)
        if group.parent.name == "cpuset":
            for name in ("cpuset.cpus", "cpuset.mems"):
                (group / name).write_text((group.parent / name).read_text(encoding="ascii"), encoding="ascii")


def containerd_settings(node: Node) -> str:
    disabled = [f"io.containerd.snapshotter.v1.{name}" for name in ("aufs", "btrfs", "devmapper", "zfs")]
    return f"""version = 2
root = "{node.folder}/containerd"
state = "/run/{node.namespace}"
disabled_plugins = {json.dumps(disabled)}
[grpc]
  address = "{node.socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  stream_server_address = "127.0.0.1"
  # where root lacks CAP_SYS_RESOURCE, no process may protect itself from being killed for memory
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{node.folder}/cni"
"""


def pod_network(node: Node) -> dict[str, Any]:
    addresses = {
        "type": "host-local",
        "dataDir": f"/run/{node.namespace}-ipam",
        "ranges": [[{"subnet": node.pods}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    plugins = [{"type": "ptp", "ipam": addresses}, {"type": "portmap", "capabilities": {"portMappings": True}}]
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": plugins}


def kubelet_settings(node: Node) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{node.layout.keys}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{node.namespace}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "clusterDNS": [CONTROL_ADDRESS],
        "clusterDomain": "cluster.local",
        "resolvConf": "",
        "containerRuntimeEndpoint": f"unix://{node.socket}",
        "podLogsDir": f"{node.folder}/logs",
        "nodeStatusUpdateFrequency": "4s",
        "nodeLeaseDurationSeconds": 12,
        # an image that was removed could not be fetched again
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
    }


def start_script(node: Node, images: Sequence[Path]) -> str:
    """What runs in the node's namespaces. While the file `hold` exists, an ended kubelet is not started again."""
    layout, folder, logs = node.layout, node.folder, node.layout.logs
    hk, keys = layout.program("hk"), layout.keys
    archives = " ".join(shlex.quote(str(path)) for path in (layout.home / "img" / "pause.tar", *images))
    ctr = f"ctr -a {node.socket}"
    proxy = f"{hk} kube-proxy --kubeconfig={keys}/proxy.conf --hostname-override={node.name} --cluster-cidr={PODS}"
    unlimited = " ".join(f"--conntrack-{name}=0" for name in _CONNTRACK)
    router = f"{layout.program('kube-router')} --kubeconfig={keys}/dns.conf --hostname-override={node.name}"
    switches = f"--run-router=false --run-service-proxy=false --run-firewall=true --service-cluster-ip-range={SERVICES}"
    kubelet = f"{hk} kubelet --config={folder}/kubelet.yaml --kubeconfig={keys}/{node.name}.conf"
    identity = f"--hostname-override={node.name} --node-ip={node.address} --root-dir={folder}/kubelet"
    label = f"--node-labels=topology.kubernetes.io/zone={node.zone}"
    return f"""mount --make-rshared /
mount -t tmpfs none /run/netns  # names of the pods' networks, which this node alone sees
containerd --config {folder}/containerd.toml > {logs}/{node.name}-containerd.log 2>&1 &
for _ in $(seq 120); do {ctr} version > /dev/null 2>&1 && break; sleep 0.5; done
for archive in {archives}; do {ctr} -n k8s.io images import "$archive"; done > {logs}/{node.name}-images.log 2>&1
{proxy} {unlimited} > {logs}/{node.name}-proxy.log 2>&1 &
while sleep 1; do
  NODE_NAME={node.name} {router} {switches} --health-port=0 --metrics-port=0 > {logs}/{node.name}-policy.log 2>&1
done &
while :; do
  {kubelet} {identity} {label} >> {logs}/{node.name}-kubelet.log 2>&1 &
  echo $! > {folder}/kubelet.pid
  wait $!
  while [ -e {folder}/hold ]; do sleep 0.5; done
  sleep 1
done
"""


_CONNTRACK = ("max-per-core", "tcp-timeout-established", "tcp-timeout-close-wait")


def remove_node(layout: Layout, number: int) -> None:
    """Remove network and cgroups of a node whose processes have ended."""
    node = layout.node(number)
    run("ip", "netns", "del", node.namespace, check=False)
    for group in cgroups(node):
        for inner in sorted(group.rglob("*"), reverse=True):
            if inner.is_dir():
                inner.rmdir()
        if group.is_dir():
            group.rmdir()
