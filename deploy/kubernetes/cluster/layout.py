"""Where the cluster keeps its files, and its addresses."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from deploy.local.pulsar import cache_folder

CONTROL_NAMESPACE = "wbk8s"
CONTROL_ADDRESS = "10.90.0.1"
API_PORT = 6443
API_SERVICE_ADDRESS = "10.96.0.1"
SERVICES = "10.96.0.0/16"
PODS = "10.244.0.0/16"
MOST_NODES = 5


@dataclass(frozen=True)
class Layout:
    """Programs, and the state of the one cluster that can run on a machine."""

    home: Path

    @classmethod
    def of_user(cls) -> Layout:
        return cls(cache_folder() / "kubernetes")

    @property
    def run(self) -> Path:
        return self.home / "run"

    @property
    def keys(self) -> Path:
        return self.run / "pki"

    @property
    def logs(self) -> Path:
        return self.run / "log"

    @property
    def state(self) -> Path:
        """Exists while the cluster runs, or was not ended: its processes and nodes."""
        return self.run / "state.json"

    def program(self, name: str) -> str:
        return str(self.home / "bin" / name)

    def node(self, number: int) -> Node:
        return Node(layout=self, number=number)


@dataclass(frozen=True)
class Node:
    """One node by its number, from 1: a network namespace, a process namespace and folders."""

    layout: Layout
    number: int

    @property
    def name(self) -> str:
        return f"n{self.number}"

    @property
    def zone(self) -> str:
        return f"zone-{self.number}"

    @property
    def namespace(self) -> str:
        """Of its network; also the name of its cgroup."""
        return f"wb-{self.name}"

    @property
    def address(self) -> str:
        return f"10.90.0.{10 + self.number}"

    @property
    def pods(self) -> str:
        return f"10.244.{self.number}.0/24"

    @property
    def folder(self) -> Path:
        return self.layout.run / self.name

    @property
    def socket(self) -> Path:
        """Of its containerd: short, as a socket's path must be."""
        return Path(f"/run/{self.namespace}.sock")
