"""What is counted, for Prometheus and for the status. `docs/gateway.md` lists every metric."""

from __future__ import annotations

from collections import Counter as Counts
from math import nan

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gateway.inflight import Delivery
from gateway.push import OUTCOMES
from gateway.status import GatewayStatus
from telemetry import Ack

_LATENCY_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class GatewayMetrics:
    """The numbers of one gateway: metrics in a registry of their own, and `counts` by the status's keys."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.counts: Counts[str] = Counts()
        self._batches = _counter(registry, "batches", "Batches persisted in Pulsar")
        self._records = _counter(registry, "records", "Records inside the persisted batches")
        self._bytes = _counter(registry, "bytes", "Bytes of the persisted batches")
        self._refused = _counter(registry, "refused", "Batches refused, by reason", "reason")
        self._not_kept = _counter(registry, "dead_letters_not_kept", "Refused messages of which no copy was kept")
        self._errors = _counter(registry, "internal_errors", "Messages whose handling raised an error")
        self._qos_0_dropped = _counter(registry, "qos_0_dropped", "Messages of QoS 0 dropped in a full window")
        self._joined = _counter(registry, "joined", "Batches that came again while they were in flight")
        self._acks = _counter(registry, "acks", "Acknowledgements published to devices")
        self._acks_refused = _counter(registry, "acks_refused", "Messages to devices that the broker refused")
        self._acks_without_subscriber = _counter(
            registry, "acks_without_subscriber", "Messages to devices without a subscriber"
        )
        self._pauses = _counter(registry, "pauses", "Acknowledgements that asked for a pause")
        self._pushes = _counter(registry, "pushes", "Settings published to devices")
        self._config_results = _counter(
            registry, "push_results", "Outcomes of pushed settings, as devices report them", "outcome"
        )
        self._pulsar_failures = _counter(registry, "pulsar_failures", "Sends that failed and are retried", "result")
        self._mqtt_failures = _counter(registry, "mqtt_failures", "Broker connections that failed or ended")
        self._in_flight = _gauge(registry, "in_flight", "Batches taken and not yet persisted")
        self._in_flight_bytes = _gauge(registry, "in_flight_bytes", "Bytes of the batches in flight")
        self._oldest_s = _gauge(registry, "oldest_in_flight_seconds", "Age of the batch that waits longest")
        self._mqtt_up = _gauge(registry, "mqtt_up", "1 while subscribed at the MQTT broker")
        self._pulsar_up = _gauge(registry, "pulsar_up", "1 while the producer is connected to Pulsar")
        self._devices = _gauge(registry, "devices", "Devices heard since the start")
        self._silent = _gauge(registry, "devices_silent", "Of these, not heard lately; NaN while it is unknown")
        self._healthy = _gauge(registry, "healthy", "1 while healthy")
        self._persist_s = Histogram(
            "waybill_gateway_persist_seconds",
            "From the arrival of a batch to Pulsar's receipt",
            registry=registry,
            buckets=_LATENCY_S,
        )

    def on_persisted(self, delivery: Delivery, now_s: float) -> None:
        """Pulsar has a batch."""
        self._persist_s.observe(now_s - delivery.arrived_s)
        self._batches.inc()
        self._records.inc(delivery.records)
        self._bytes.inc(len(delivery.payload))
        self.counts["batches_persisted"] += 1
        self.counts["records_persisted"] += delivery.records
        self.counts["bytes_persisted"] += len(delivery.payload)

    def on_refused(self, reason: str, *, kept: bool) -> None:
        """A message is refused; `kept`: with a copy among the dead letters."""
        self._refused.labels(reason).inc()
        self.counts["batches_refused"] += 1
        if not kept:
            self.on_dead_letter_lost()

    def on_dead_letter_lost(self) -> None:
        """There is no copy of a refused message: too many came, or Pulsar does not take it."""
        self._not_kept.inc()
        self.counts["dead_letters_not_kept"] += 1

    def on_internal_error(self) -> None:
        """The handling of a message raised an error."""
        self._errors.inc()
        self.counts["internal_errors"] += 1

    def on_qos_0_dropped(self) -> None:
        """A message of QoS 0 was dropped."""
        self._qos_0_dropped.inc()
        self.counts["qos_0_dropped"] += 1

    def on_publish_result(self, *, refused: bool, has_no_subscriber: bool) -> None:
        """The broker answered to a message for a device."""
        if refused:
            self._acks_refused.inc()
            self.counts["acks_refused"] += 1
        if has_no_subscriber:
            self._acks_without_subscriber.inc()
            self.counts["acks_without_subscriber"] += 1

    def on_joined(self) -> None:
        """A batch came again while it was in flight."""
        self._joined.inc()
        self.counts["batches_joined"] += 1

    def on_acked(self, ack: Ack) -> None:
        """An acknowledgement was published."""
        self._acks.inc()
        self.counts["acks_published"] += 1
        if ack.pause_s:
            self._pauses.inc()
            self.counts["pauses_asked"] += 1

    def on_pushed(self) -> None:
        """Settings were published."""
        self._pushes.inc()
        self.counts["pushes_published"] += 1

    def on_config_result(self, outcome: str) -> None:
        """A device said what became of its settings: one of `OUTCOMES`, or something else."""
        known = outcome if outcome in OUTCOMES else "unknown"
        self._config_results.labels(known).inc()
        self.counts[f"pushes_{known.replace(' ', '_')}"] += 1

    def on_pulsar_failed(self, result: str) -> None:
        """A send failed and is retried."""
        self._pulsar_failures.labels(result).inc()
        self.counts["pulsar_failures"] += 1

    def on_connection_failed(self) -> None:
        """The connection to the broker ended or did not come up."""
        self._mqtt_failures.inc()

    def set_gauges(self, status: GatewayStatus) -> None:
        """Set the gauges as the status has it."""
        self._in_flight.set(status.in_flight)
        self._in_flight_bytes.set(status.in_flight_bytes)
        self._oldest_s.set(status.oldest_in_flight_s)
        self._devices.set(status.devices_known)
        # 0 would claim that nobody is silent.
        self._silent.set(nan if status.devices_silent is None else status.devices_silent)
        self._healthy.set(status.healthy)
        self._mqtt_up.set(status.mqtt_connected)
        self._pulsar_up.set(status.pulsar_connected)


def _counter(registry: CollectorRegistry, name: str, text: str, *labels: str) -> Counter:
    return Counter(f"waybill_gateway_{name}", text, labels, registry=registry)


def _gauge(registry: CollectorRegistry, name: str, text: str) -> Gauge:
    return Gauge(f"waybill_gateway_{name}", text, registry=registry)
