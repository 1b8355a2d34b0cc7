"""Replication as Prometheus metrics."""

from collections.abc import Iterator
from threading import Event

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from geo.replication.observe import Observation

__all__ = ["METRICS", "ReplicationCollector"]

_CLUSTER = ("cluster",)
_LINK = ("namespace", "source", "target")
_CURSOR = ("topic", "subscription", "cluster")

METRICS = {
    "waybill_replication_cluster_reachable": "1 when the cluster's admin interface answered",
    "waybill_replication_connected": "1 when every replicator of the link is connected",
    "waybill_replication_backlog_messages": "messages of the namespace that the target does not have yet",
    "waybill_replication_lag_seconds": "age of the oldest message that the target does not have yet",
    "waybill_replication_cursor_snapshot_age_seconds": "since the subscription's position last moved in this cluster",
    "waybill_replication_cursor_snapshot_behind_seconds": "how long before the furthest cluster's it last moved here",
    "waybill_replication_cursor_waiting_seconds": "age of the oldest of them; 0 when nothing waits",
    "waybill_replication_cursor_backlog_messages": "messages and markers that the subscription has not acknowledged",
    "waybill_replication_unknown_cursor_backlog_messages": "the same of a subscription that the topology does not name",
}


class ReplicationCollector(Collector):
    """Gives the last observation as metrics; what is not observed any more is not exported any more."""

    def __init__(self) -> None:
        self._last: Observation | None = None
        self.ready = Event()

    def registry(self) -> CollectorRegistry:
        """A registry with these metrics only."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return registry

    def update(self, observation: Observation) -> None:
        """Export this observation from now on."""
        self._last = observation
        self.ready.set()

    def describe(self) -> Iterator[Metric]:
        """Each metric without its values."""
        yield from map(_gauge, METRICS)

    def collect(self) -> Iterator[Metric]:
        """The metrics of the last observation."""
        if self._last is None:
            return
        yield from _reachable(self._last)
        yield from _links(self._last)
        yield from _cursors(self._last)


def _gauge(name: str) -> GaugeMetricFamily:
    labels = _CURSOR if "_cursor_" in name else _CLUSTER if "_cluster_" in name else _LINK
    return GaugeMetricFamily(name, METRICS[name], labels=labels)


def _reachable(seen: Observation) -> Iterator[Metric]:
    gauge = _gauge("waybill_replication_cluster_reachable")
    for cluster in sorted({link.source for link in seen.links} | set(seen.unreachable)):
        gauge.add_metric([cluster], 0 if cluster in seen.unreachable else 1)
    yield gauge


def _links(seen: Observation) -> Iterator[Metric]:
    connected = _gauge("waybill_replication_connected")
    backlog = _gauge("waybill_replication_backlog_messages")
    lag = _gauge("waybill_replication_lag_seconds")
    for link in seen.links:
        labels = [link.namespace, link.source, link.target]
        connected.add_metric(labels, float(link.connected))
        if link.backlog is not None:
            backlog.add_metric(labels, link.backlog)
        if link.delay_s is not None:
            lag.add_metric(labels, link.delay_s)
    yield from (connected, backlog, lag)


def _cursors(seen: Observation) -> Iterator[Metric]:
    age = _gauge("waybill_replication_cursor_snapshot_age_seconds")
    behind = _gauge("waybill_replication_cursor_snapshot_behind_seconds")
    waiting = _gauge("waybill_replication_cursor_waiting_seconds")
    backlog = _gauge("waybill_replication_cursor_backlog_messages")
    for cursor in seen.cursors:
        labels = [cursor.topic, cursor.subscription, cursor.cluster]
        backlog.add_metric(labels, cursor.backlog)
        if cursor.age_s is not None:
            age.add_metric(labels, cursor.age_s)
        if cursor.behind_s is not None:
            behind.add_metric(labels, cursor.behind_s)
        if cursor.waiting_s is not None:
            waiting.add_metric(labels, cursor.waiting_s)
    unknown = _gauge("waybill_replication_unknown_cursor_backlog_messages")
    for one in seen.unknown:
        unknown.add_metric([one.topic, one.subscription, one.cluster], one.backlog)
    yield from (age, behind, waiting, backlog, unknown)
