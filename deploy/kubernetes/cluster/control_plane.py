"""etcd, API server, controller manager, scheduler and names, in one network namespace."""

from __future__ import annotations

import json
import sys
from typing import Any

from deploy.kubernetes.cluster.certificates import Authority
from deploy.kubernetes.cluster.layout import (
    API_PORT,
    CONTROL_ADDRESS,
    CONTROL_NAMESPACE,
    SERVICES,
    Layout,
)
from deploy.kubernetes.cluster.processes import Processes, run, wait_for

_READY_S = 120
NODE_GRACE_S = 16
"""A node that has not answered for this time is not ready."""
VOLUMES = "/tmp/hostpath_pv"  # noqa: S108 - the controller's own provisioner makes its volumes here, and nowhere else


def start_control_plane(layout: Layout, processes: Processes, authority: Authority) -> None:
    """Start all, and wait until the API server is ready. Raises ClusterError."""
    run("ip", "netns", "add", CONTROL_NAMESPACE)
    for words in (
        ("ip", "link", "set", "lo", "up"),
        ("ip", "link", "add", "br0", "type", "bridge"),
        ("ip", "addr", "add", f"{CONTROL_ADDRESS}/24", "dev", "br0"),
        ("ip", "link", "set", "br0", "up"),
        ("sysctl", "-qw", "net.ipv4.ip_forward=1"),
    ):
        run(*words, namespace=CONTROL_NAMESPACE)
    _start_servers(layout, processes, authority)
    kubectl = (layout.program("hk"), "kubectl", "--kubeconfig", str(layout.keys / "admin.conf"))
    wait_for("the API server", _READY_S, *kubectl, "get", "--raw", "/readyz")
    _start_controllers(layout, processes, authority)
    run(*kubectl, "apply", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects()}))


def _start_servers(layout: Layout, processes: Processes, authority: Authority) -> None:
    keys = layout.keys
    authority.issue("apiserver", "kube-apiserver", "system:masters", serves=True)
    authority.access_file("admin", "admin", "system:masters", f"https://127.0.0.1:{API_PORT}")
    etcd = "http://127.0.0.1:2379"
    urls = [
        f"--listen-client-urls={etcd}",
        f"--advertise-client-urls={etcd}",
        "--listen-peer-urls=http://127.0.0.1:2380",
    ]
    # without waiting for the disk: the cluster does not outlive the machine
    command = ["etcd", f"--data-dir={layout.run}/etcd", "--unsafe-no-fsync", *urls]
    processes.start("etcd", command, namespace=CONTROL_NAMESPACE)
    options = [
        f"--etcd-servers={etcd}",
        f"--advertise-address={CONTROL_ADDRESS}",
        f"--secure-port={API_PORT}",
        f"--service-cluster-ip-range={SERVICES}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        f"--client-ca-file={keys}/ca.crt",
        f"--tls-cert-file={keys}/apiserver.crt",
        f"--tls-private-key-file={keys}/apiserver.key",
        f"--kubelet-client-certificate={keys}/apiserver.crt",
        f"--kubelet-client-key={keys}/apiserver.key",
        "--kubelet-preferred-address-types=InternalIP",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={keys}/sa.key",
        f"--service-account-signing-key-file={keys}/sa.key",
        "--allow-privileged=true",
    ]
    processes.start("apiserver", [layout.program("hk"), "kube-apiserver", *options], namespace=CONTROL_NAMESPACE)
    inside = f"nsenter --net=/run/netns/{CONTROL_NAMESPACE} socat - TCP\\:{CONTROL_ADDRESS}\\:{API_PORT}"
    processes.start("entrance", ["socat", f"TCP-LISTEN:{API_PORT},bind=127.0.0.1,fork,reuseaddr", f"EXEC:{inside}"])


def _start_controllers(layout: Layout, processes: Processes, authority: Authority) -> None:
    keys = layout.keys
    access = authority.access_file("controllers", "system:kube-controller-manager")
    options = [
        f"--kubeconfig={access}",
        f"--authentication-kubeconfig={access}",
        f"--authorization-kubeconfig={access}",
        f"--root-ca-file={keys}/ca.crt",
        f"--service-account-private-key-file={keys}/sa.key",
        f"--cluster-signing-cert-file={keys}/ca.crt",
        f"--cluster-signing-key-file={keys}/ca.key",
        "--use-service-account-credentials=true",
        "--leader-elect=false",
        "--enable-hostpath-provisioner=true",
        "--node-monitor-period=2s",
        f"--node-monitor-grace-period={NODE_GRACE_S}s",
    ]
    command = [layout.program("hk"), "kube-controller-manager", *options]
    processes.start("controllers", command, namespace=CONTROL_NAMESPACE)
    access = authority.access_file("scheduler", "system:kube-scheduler")
    given = [f"--{word}kubeconfig={access}" for word in ("", "authentication-", "authorization-")]
    command = [layout.program("hk"), "kube-scheduler", *given, "--leader-elect=false"]
    processes.start("scheduler", command, namespace=CONTROL_NAMESPACE)
    access = authority.access_file("dns", "coredns", "system:masters")
    names = f"kubernetes cluster.local in-addr.arpa {{\n  kubeconfig {access} cluster\n  pods insecure\n }}"
    served = f".:53 {{\n bind {CONTROL_ADDRESS}\n errors\n cache 5\n {names}\n}}\n"
    (layout.run / "Corefile").write_text(served, encoding="utf-8")
    command = [layout.program("coredns"), "-conf", str(layout.run / "Corefile")]
    processes.start("dns", command, namespace=CONTROL_NAMESPACE)
    authority.access_file("proxy", "system:kube-proxy")
    processes.start("volumes", [sys.executable, "-m", "deploy.kubernetes.cluster.volumes"])


def objects() -> list[dict[str, Any]]:
    """The storage class of the controller's own provisioner, and rights that a real installer gives."""
    roles = {
        "kube-proxy": ("system:node-proxier", "system:kube-proxy"),
        "volumes": ("system:controller:persistent-volume-binder", "system:kube-controller-manager"),
    }
    default = {"storageclass.kubernetes.io/is-default-class": "true"}
    return [
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": "standard", "annotations": default},
            "provisioner": "kubernetes.io/host-path",
        },
        *(
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": name},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
                "subjects": [{"kind": "User", "name": user}],
            }
            for name, (role, user) in roles.items()
        ),
    ]
