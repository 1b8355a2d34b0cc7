"""Puts the addresses of running clusters into a topology file."""

import json
from collections.abc import Mapping
from pathlib import Path

from deploy.local.link import CuttableLink
from deploy.local.pulsar import PulsarCluster
from geo.replication import Topology
from runtime import replace_durably
from settings import load

__all__ = ["with_addresses"]


def with_addresses(
    source: Path, clusters: Mapping[str, PulsarCluster], links: Mapping[str, CuttableLink], file: Path
) -> Topology:
    """The topology of `source` with every cluster's address, as it is then written to `file`.

    Clusters see each other over the links, so that a link can be cut.
    """
    tables = [line for name in sorted(clusters) for line in _tables(name, clusters[name], links)]
    text = source.read_text() + "\n# Addresses, added when the stack started.\n" + "\n".join(tables) + "\n"
    replace_durably(file, text.encode())
    return load(Topology, file)


def _tables(name: str, cluster: PulsarCluster, links: Mapping[str, CuttableLink]) -> list[str]:
    here = f"[clusters.{json.dumps(name)}.address"  # a bare key of TOML has no dot in it
    lines = [f"{here}]"]
    lines += [f'service_url = "{cluster.service_url}"', f'admin_url = "{cluster.admin_url}"']
    for peer in sorted(cluster.peers):
        lines += [
            f"{here}.seen_from.{json.dumps(peer)}]",
            f'service_url = "pulsar://127.0.0.1:{links[f"{peer}->{name}"].port}"',
            f'listener = "from-{peer}"',
        ]
    return lines
