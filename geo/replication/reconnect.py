"""Brings replicators back that gave up: Pulsar does not try again after some refusals of the other cluster."""

import time
from collections.abc import Mapping

from geo.replication.actual import for_each_cluster, topic_stats
from geo.replication.admin import AdminClient
from geo.replication.model import Topology
from geo.replication.rest_types import TopicStats
from geo.replication.topic_naming import topic_path

__all__ = ["reconnect"]

_TIMEOUT_S = 10.0
_POLL_S = 0.5


def reconnect(topology: Topology, clients: Mapping[str, AdminClient]) -> list[str]:
    """Reload each topic that has no connection to another of these clusters for ten seconds; returns them in words.

    All of `clients` answer. A cluster that lost its disks refuses a replicator, "namespace not found", and 4.0.8 closes
    that for good. A reload interrupts the topic's clients for a moment, and loses nothing.
    """
    deadline = time.monotonic() + _TIMEOUT_S
    # A replicator that Pulsar is about to connect by itself needs no reload, which would disturb its topic's clients.
    while (lost := _disconnected(topology, clients)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    for source, topic in lost:
        clients[source].put(f"{topic_path(topic)}/unload")
    return [
        f"{source}: reloaded topic {topic}, not connected to {', '.join(lost[source, topic])}" for source, topic in lost
    ]


def _disconnected(topology: Topology, clients: Mapping[str, AdminClient]) -> dict[tuple[str, str], list[str]]:
    """Source and topic -> the clusters that it does not reach."""
    links = [link for link in topology.links() if {link[1], link[2]} <= set(clients)]

    def ask(admin: AdminClient) -> dict[str, dict[str, TopicStats | None]]:
        return {
            name: topic_stats(admin, name) for name in {name for name, source, _ in links if source == admin.cluster}
        }

    stats = for_each_cluster(clients, ask)
    lost: dict[tuple[str, str], list[str]] = {}
    for namespace, source, target in links:
        for topic, of_topic in stats[source][namespace].items():
            # A topic that does not exist (a partition that was never used) has no statistics, and cannot be reloaded.
            replicator = of_topic and of_topic.replication.get(target)
            if of_topic and not (replicator and replicator.connected):
                lost.setdefault((source, topic), []).append(target)
    return lost
