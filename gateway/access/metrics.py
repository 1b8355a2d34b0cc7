"""The numbers of an access daemon."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.registry import CollectorRegistry

from gateway.access.status import AccessStatus
from waybill.daemon.mirrored_counter import MirroredCounter
from waybill.record import DeviceChannel

__all__ = ["AccessMetrics"]

# fine below a second, which is what is promised of a revocation
_STEP_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class MirroredCounts:
    """What the registry, the enrolment and the readers of the brokers' logs count for themselves."""

    def __init__(self, registry: CollectorRegistry) -> None:
        mirrored = partial(MirroredCounter, registry=registry)
        self.entries = mirrored(
            "waybill_access_entries_total", "Messages of the registry, by what became of them", ["outcome"]
        )
        self.entries_refused = mirrored(
            "waybill_access_entries_refused_total", "Of these refused, by reason", ["reason"]
        )
        self.published_again = mirrored(
            "waybill_access_entries_published_again_total",
            "What holds of a device, published again behind another message",
        )
        self.answers_dropped = mirrored(
            "waybill_access_answers_dropped_total",
            "Confirmations and refusals of publications for which there was no room",
        )
        self.topics_held = mirrored(
            "waybill_access_topics_held_total",
            "Publications that were refused because another producer has the topic for itself",
            ["topic"],
        )
        self.enrolments = mirrored(
            "waybill_access_enrolments_total", "Requests for certificates, by what became of them", ["outcome"]
        )
        self.connections_refused = mirrored(
            "waybill_access_connections_refused_total",
            "Connections that a broker refused, by its log",
            ["broker", "reason"],
        )
        self.publications_refused = mirrored(
            "waybill_access_publications_refused_total",
            "Publications that a broker refused, by its log",
            ["broker", "kind"],
        )

    def take(self, status: AccessStatus) -> None:
        """What the status says of this moment."""
        self.entries.set(status.entries_refused, "refused")
        self.answers_dropped.set(status.answers_dropped)
        self.published_again.set(status.entries_published_again)
        self.entries.set(status.entries_outranked, "outranked")
        for reason, count in status.entries_refused_by.items():
            self.entries_refused.set(count, reason)
        for topic, count in status.topics_held.items():
            self.topics_held.set(count, topic)
        for outcome, count in status.enrolments.items():
            self.enrolments.set(count, outcome)
        for broker, refused in status.connections_refused.items():
            for reason, count in refused.items():
                self.connections_refused.set(count, broker, reason)
        for broker, refused in status.publications_refused.items():
            # 0 from the start on: the first one is an increase for who alerts on it
            for kind in {*DeviceChannel, *refused}:
                self.publications_refused.set(refused.get(kind, 0), broker, kind)


class AccessMetrics:
    """Metrics in a registry of their own. `topics`: of the tenants' registries."""

    def __init__(self, topics: Iterable[str] = ()) -> None:
        self.registry = registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        self.mirrored = MirroredCounts(registry)
        for topic in topics:
            # 0 from the start on: the first one is an increase for who alerts on it
            self.mirrored.topics_held.set(0, topic)
        self.reloads = counter("waybill_access_reloads_total", "Signals to the broker to read its files")
        self.sessions_ended = counter("waybill_access_sessions_ended_total", "Sessions taken over so that they end")
        self.sessions_came_back = counter(
            "waybill_access_sessions_came_back_total", "Devices found connected again, and ended again"
        )
        self.steps_failed = counter("waybill_access_steps_failed_total", "Steps that are done again")
        self.changes_failed = counter(
            "waybill_access_changes_failed_total", "Changes that could not be applied, each time that they were tried"
        )
        self.lists = counter("waybill_access_lists_total", "Revocation lists of other regions, by outcome", ["outcome"])
        self.step_s = Histogram(
            "waybill_access_step_seconds",
            "From a change to the end of the sessions that it ends",
            registry=registry,
            buckets=_STEP_S,
        )
        self.closed = gauge("waybill_access_closed_devices", "Devices that may not connect")
        self.left_open = gauge(
            "waybill_access_left_open_devices", "Devices that may not connect, and whom the gateway alone keeps out"
        )
        self.revoked = gauge("waybill_access_revoked_certificates", "Certificates on the region's own list")
        self.list_bytes = gauge("waybill_access_list_bytes", "Bytes of the region's own list, of at most 5,000,000")
        self.list_ends = gauge(
            "waybill_access_list_ends_timestamp_seconds", "When the first list ends, seconds since 1970"
        )
        self.key_ends = gauge(
            "waybill_access_key_ends_timestamp_seconds", "When the daemon's own key ends, seconds since 1970; 0: never"
        )
        self.registry_up = gauge("waybill_access_registry_up", "1 while the registry is read to its end")
        self._counted = {
            "reloads": self.reloads,
            "sessions_ended": self.sessions_ended,
            "sessions_came_back": self.sessions_came_back,
            "steps_failed": self.steps_failed,
            "changes_failed": self.changes_failed,
        }
        self.healthy = gauge("waybill_access_healthy", "1 while healthy")

    @property
    def counts(self) -> dict[str, int]:
        """What was counted since the start, by the status's keys."""
        return {
            key: int(sample.value)
            for key, counter in self._counted.items()
            for metric in counter.collect()
            for sample in metric.samples
            if sample.name.endswith("_total")
        }

    def take(self, status: AccessStatus) -> None:
        """What the status says of this moment."""
        self.closed.set(status.devices_closed)
        self.list_bytes.set(status.list_bytes)
        self.left_open.set(status.devices_left_open)
        self.revoked.set(status.certificates_revoked)
        self.list_ends.set(min(status.lists.values(), default=0))
        self.key_ends.set(status.key_ends_s or 0)
        self.registry_up.set(status.registry_current)
        self.healthy.set(status.healthy)
        self.mirrored.take(status)
