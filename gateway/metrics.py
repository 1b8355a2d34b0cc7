"""What is counted, for Prometheus and for the status. `docs/gateway.md` lists every metric."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate
from math import nan

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from gateway.inflight import Delivery
from gateway.push import OUTCOMES, UNKNOWN
from gateway.status import GatewayStatus
from waybill.daemon.status_server import MirroredCounter
from waybill.record import Ack, RefusalReason

_OUTCOMES = (*OUTCOMES, UNKNOWN)
_LATENCY_S = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
# The status's key of each count: the name of its metric, what it counts, and its label.
_COUNTERS = {
    "batches_persisted": ("batches_total", "Batches persisted in Pulsar"),
    "heartbeats_persisted": ("heartbeats_total", "Of these, heartbeats: they hold no record"),
    "records_persisted": ("records_total", "Records inside the persisted batches"),
    "bytes_persisted": ("bytes_total", "Bytes of the persisted batches"),
    "batches_refused": ("refused_batches_total", "Batches refused, by reason", "reason"),
    "batches_slowed_down": ("slowed_down_batches_total", "Batches to be sent again later, by tenant", "tenant"),
    "dead_letters_not_kept": ("dead_letters_not_kept_total", "Refused messages of which no copy was kept"),
    "internal_errors": ("internal_errors_total", "Messages whose handling raised an error"),
    "qos_0_dropped": ("qos_0_dropped_total", "Messages of QoS 0 dropped in a full window"),
    "batches_joined": ("joined_batches_total", "Batches that came again while they were in flight"),
    "acks_published": ("acks_total", "Acknowledgements published to devices"),
    "acks_refused": ("acks_refused_total", "Acknowledgements that the broker refused"),
    "acks_without_subscriber": ("acks_without_subscriber_total", "Acknowledgements without a subscriber"),
    "pauses_asked": ("pauses_total", "Acknowledgements that asked for a pause"),
    "pushes_published": ("pushes_total", "Settings published to devices"),
    "pushes_not_published": (
        "pushes_not_published_total",
        "Files of settings that are unsigned, or cannot be published",
    ),
    "pushes_refused_by_broker": ("pushes_refused_by_broker_total", "Settings for devices that the broker refused"),
    "pulsar_failures": ("pulsar_failures_total", "Sends that failed and are retried", "result"),
}


class Latencies(Collector):
    """A histogram with these upper bounds of its buckets, ascending, in seconds. One thread observes, any may collect.

    The client library's own goes through its buckets one by one and takes two locks for each value.
    """

    def __init__(self, name: str, text: str, bounds_s: Sequence[float]) -> None:
        self._name, self._text, self._bounds_s = name, text, tuple(bounds_s)
        self._counts = [0] * (len(bounds_s) + 1)
        self._sum_s = 0.0

    def observe(self, values_s: Iterable[float]) -> None:
        """So long they took."""
        for value_s in values_s:
            self._counts[bisect_left(self._bounds_s, value_s)] += 1
            self._sum_s += value_s

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """What was observed, as Prometheus has it: each bucket counts those below it, too."""
        names = [*map(str, map(float, self._bounds_s)), "+Inf"]
        buckets = list(zip(names, accumulate(self._counts), strict=True))
        yield HistogramMetricFamily(self._name, self._text, buckets=buckets, sum_value=self._sum_s)


class GatewayMetrics:
    """The numbers of one gateway: metrics in a registry of their own, which the status shows by its own keys."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._counters = {key: _counter(registry, *about) for key, about in _COUNTERS.items()}
        # 0 from the start on: the first one is an increase for who alerts on it
        for reason in RefusalReason:
            self._counters["batches_refused"].labels(reason)
        self._config_results = _counter(
            registry, "push_results_total", "Outcomes of pushed settings, as devices report them", "outcome"
        )
        self._counters["mqtt_failures"] = _counter(
            registry, "mqtt_failures_total", "Broker connections that failed or ended"
        )
        self._in_flight = _gauge(registry, "in_flight_batches", "Batches taken and not yet persisted")
        self._in_flight_bytes = _gauge(registry, "in_flight_bytes", "Bytes of the batches in flight")
        self._oldest_s = _gauge(registry, "oldest_in_flight_seconds", "Age of the batch that waits longest")
        self._mqtt_up = _gauge(registry, "mqtt_up", "1 while subscribed at the MQTT broker")
        self._pulsar_up = _gauge(registry, "pulsar_up", "1 while the producer is connected to Pulsar")
        self._devices = _gauge(registry, "devices", "Devices heard since the start")
        self._silent = _gauge(registry, "silent_devices", "Of these, not heard lately; NaN while it is unknown")
        self._stuck = _gauge(registry, "stuck_tenants", "Tenants of which Pulsar takes nothing while it takes others")
        self._registry_up = _gauge(
            registry, "registry_up", "1 while the device registry is read to its end; NaN without"
        )
        self._registry_devices = _gauge(registry, "registry_devices", "Devices that the registry has")
        self._registry_refused = MirroredCounter(
            "waybill_gateway_registry_refused_messages_total",
            "Messages of the registry not taken",
            ["reason"],
            registry=registry,
        )
        self._healthy = _gauge(registry, "healthy", "1 while healthy")
        count = self._counters.__getitem__
        self._batches, self._heartbeats = count("batches_persisted"), count("heartbeats_persisted")
        self._records, self._bytes, self._acks = (
            count("records_persisted"),
            count("bytes_persisted"),
            count("acks_published"),
        )
        self._persist_s = Latencies(
            "waybill_gateway_persist_seconds", "From the arrival of a batch to Pulsar's receipt", _LATENCY_S
        )
        registry.register(self._persist_s)

    @property
    def counts(self) -> dict[str, int]:
        """What was counted since the start, by the status's keys."""
        counts = {key: sum(_by_label(self._counters[key]).values()) for key in _COUNTERS}
        results = _by_label(self._config_results)
        return counts | {f"pushes_{outcome.replace(' ', '_')}": results.get(outcome, 0) for outcome in _OUTCOMES}

    def on_persisted(self, deliveries: Collection[Delivery], now_s: float) -> None:
        """Pulsar has these batches. Together: each count by itself costs more than what is counted."""
        self._persist_s.observe([now_s - delivery.arrived_s for delivery in deliveries])
        self._batches.inc(len(deliveries))
        self._records.inc(sum([delivery.records for delivery in deliveries]))
        self._heartbeats.inc(sum([delivery.is_heartbeat for delivery in deliveries]))
        self._bytes.inc(sum([len(delivery.payload) for delivery in deliveries]))

    def count(self, key: str, *labels: str) -> None:
        """One more of what a key of the status counts."""
        counter = self._counters[key]
        (counter.labels(*labels) if labels else counter).inc()

    def on_refused(self, reason: RefusalReason, *, kept: bool) -> None:
        """A message is refused; `kept`: with a copy among the dead letters."""
        self.count("batches_refused", reason)
        if not kept:
            self.count("dead_letters_not_kept")

    def on_publish_result(self, *, is_ack: bool, refused: bool, has_no_subscriber: bool) -> None:
        """The broker answered to a message for a device: an acknowledgement, or settings."""
        if refused:
            self.count("acks_refused" if is_ack else "pushes_refused_by_broker")
        # Settings that nobody hears now are kept by the broker until their device comes.
        if has_no_subscriber and is_ack:
            self.count("acks_without_subscriber")

    def on_acked(self, ack: Ack) -> None:
        """An acknowledgement was published."""
        self._acks.inc()
        if ack.pause_s:
            self.count("pauses_asked")

    def on_config_result(self, outcome: str) -> None:
        """A device said what became of its settings: one of `OUTCOMES`, or something else."""
        self._config_results.labels(outcome if outcome in OUTCOMES else UNKNOWN).inc()

    def set_gauges(self, status: GatewayStatus) -> None:
        """Set the gauges as the status has it."""
        self._in_flight.set(status.in_flight)
        self._in_flight_bytes.set(status.in_flight_bytes)
        self._oldest_s.set(status.oldest_in_flight_s)
        self._devices.set(status.devices_known)
        # 0 would claim that nobody is silent.
        self._silent.set(nan if status.devices_silent is None else status.devices_silent)
        self._stuck.set(len(status.tenants_stuck))
        self._registry_up.set(nan if status.registry_current is None else status.registry_current)
        self._registry_devices.set(status.registry_devices)
        for reason, count in status.registry_entries_refused_by.items():
            self._registry_refused.set(count, reason)
        self._healthy.set(status.healthy)
        self._mqtt_up.set(status.mqtt_connected)
        self._pulsar_up.set(status.pulsar_connected)


def _counter(registry: CollectorRegistry, name: str, text: str, *labels: str) -> Counter:
    return Counter(f"waybill_gateway_{name}", text, labels, registry=registry)


def _by_label(counter: Counter) -> dict[str, int]:
    """What was counted for each value of the label; of a counter without one, all of it."""
    samples = [sample for metric in counter.collect() for sample in metric.samples if sample.name.endswith("_total")]
    return {next(iter(sample.labels.values()), ""): int(sample.value) for sample in samples}


def _gauge(registry: CollectorRegistry, name: str, text: str) -> Gauge:
    return Gauge(f"waybill_gateway_{name}", text, registry=registry)
