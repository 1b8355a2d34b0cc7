"""The gateway's metrics. `docs/gateway.md` lists them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from gateway.inflight import Delivery
from gateway.push import OUTCOMES, UNKNOWN
from gateway.status import GatewayStatus
from waybill.daemon.status_server import MirroredCounter, StatusGauges, counted
from waybill.record import RefusalReason

_LATENCY_S = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
# The status's key of each count: the name of its metric, what it counts, and its label.
_COUNTERS = {
    "batches_persisted": ("batches_total", "Batches persisted in Pulsar"),
    "heartbeats_persisted": ("heartbeats_total", "Heartbeats among them, which have no record"),
    "records_persisted": ("records_total", "Records inside the persisted batches"),
    "bytes_persisted": ("bytes_total", "Bytes of the persisted batches"),
    "batches_refused": ("refused_batches_total", "Batches refused, by reason", "reason"),
    "batches_slowed_down": ("slowed_down_batches_total", "Batches to be sent again later, by tenant", "tenant"),
    "dead_letters_not_kept": ("dead_letters_not_kept_total", "Refused messages of which no copy was kept"),
    "internal_errors": ("internal_errors_total", "Messages whose handling raised an error"),
    "qos_0_dropped": ("qos_0_dropped_total", "Messages of QoS 0 dropped in a full window"),
    "acks_published": ("acks_total", "Acknowledgements published to devices"),
    "acks_refused": ("acks_refused_total", "Acknowledgements that the broker refused"),
    "pushes_published": ("pushes_total", "Settings published to devices"),
    "pushes_not_published": (
        "pushes_not_published_total",
        "Files of settings that are unsigned, or cannot be published",
    ),
    "pushes_refused_by_broker": ("pushes_refused_by_broker_total", "Settings for devices that the broker refused"),
    "pulsar_failures": ("pulsar_failures_total", "Sends that failed and are retried", "result"),
}

# The status's key of each gauge: the name of its metric, and what it shows.
_GAUGES = {
    "in_flight": ("in_flight_batches", "Batches accepted but not yet persisted"),
    "in_flight_bytes": ("in_flight_bytes", "Bytes of the batches in flight"),
    "oldest_in_flight_s": ("oldest_in_flight_seconds", "Age of the batch that waits longest"),
    "mqtt_connected": ("mqtt_up", "1 while subscribed at the MQTT broker"),
    "pulsar_connected": ("pulsar_up", "1 while the producer is connected to Pulsar"),
    "tenants_stuck": ("stuck_tenants", "Tenants from which Pulsar accepts nothing while it accepts messages of others"),
    "registry_current": ("registry_up", "1 while the device registry is read to its end; NaN without"),
    "registry_devices": ("registry_devices", "Devices that the registry has"),
    "healthy": ("healthy", "1 while healthy"),
}


class Latencies(Collector):
    """A histogram with ascending bucket bounds in seconds. One thread observes, any thread may collect.

    The client library's own histogram walks through its buckets and takes two locks for each value.
    """

    def __init__(self, name: str, text: str, bounds_s: Sequence[float]) -> None:
        self._name, self._text, self._bounds_s = name, text, tuple(bounds_s)
        self._counts = [0] * (len(bounds_s) + 1)
        self._sum_s = 0.0

    def observe(self, values_s: Iterable[float]) -> None:
        for value_s in values_s:
            self._counts[bisect_left(self._bounds_s, value_s)] += 1
            self._sum_s += value_s

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """The histogram with cumulative buckets, as Prometheus has it."""
        names = [*map(str, map(float, self._bounds_s)), "+Inf"]
        buckets = list(zip(names, accumulate(self._counts), strict=True))
        yield HistogramMetricFamily(self._name, self._text, buckets=buckets, sum_value=self._sum_s)


class GatewayMetrics:
    """The metrics of one gateway, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._counters = {key: _counter(registry, *about) for key, about in _COUNTERS.items()}
        # 0 from the start, so that the first one is an increase.
        for reason in RefusalReason:
            self._counters["batches_refused"].labels(reason)
        self._config_results = _counter(
            registry, "push_results_total", "Outcomes of pushed settings, as devices report them", "outcome"
        )
        self._counters["mqtt_failures"] = _counter(
            registry, "mqtt_failures_total", "Broker connections that failed or ended"
        )
        self._gauges = StatusGauges("waybill_gateway", _GAUGES, registry)
        self._registry_refused = MirroredCounter(
            "waybill_gateway_registry_refused_messages_total",
            "Refused messages of the registry",
            ["reason"],
            registry=registry,
        )
        count = self._counters.__getitem__
        self._batches, self._heartbeats = count("batches_persisted"), count("heartbeats_persisted")
        self._records, self._bytes = count("records_persisted"), count("bytes_persisted")
        self._persist_s = Latencies(
            "waybill_gateway_persist_seconds", "From the arrival of a batch to Pulsar's receipt", _LATENCY_S
        )
        registry.register(self._persist_s)

    @property
    def counts(self) -> dict[str, int]:
        shown = _COUNTERS.keys() & GatewayStatus.model_fields.keys()
        return {key: sum(counted(self._counters[key]).values()) for key in shown}

    def on_persisted(self, deliveries: Collection[Delivery], now_s: float) -> None:
        """Count persisted batches. Together, because single counts are expensive."""
        self._persist_s.observe([now_s - delivery.arrived_s for delivery in deliveries])
        self._batches.inc(len(deliveries))
        self._records.inc(sum([delivery.records for delivery in deliveries]))
        self._heartbeats.inc(sum([delivery.is_heartbeat for delivery in deliveries]))
        self._bytes.inc(sum([len(delivery.payload) for delivery in deliveries]))

    def count(self, key: str, *labels: str) -> None:
        counter = self._counters[key]
        (counter.labels(*labels) if labels else counter).inc()

    def on_refused(self, reason: RefusalReason, *, kept: bool) -> None:
        """Count a refused message. `kept`: as a dead letter."""
        self.count("batches_refused", reason)
        if not kept:
            self.count("dead_letters_not_kept")

    def on_config_result(self, outcome: str) -> None:
        """Count a device's answer to pushed settings."""
        self._config_results.labels(outcome if outcome in OUTCOMES else UNKNOWN).inc()

    def set_gauges(self, status: GatewayStatus) -> None:
        self._gauges.set(status)
        for reason, count in status.registry_entries_refused_by.items():
            self._registry_refused.set(count, reason)


def _counter(registry: CollectorRegistry, name: str, text: str, *labels: str) -> Counter:
    return Counter(f"waybill_gateway_{name}", text, labels, registry=registry)
