"""What is counted, for Prometheus and for the status. `docs/gateway.md` lists every metric."""

from __future__ import annotations

from collections import Counter as Counts

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gateway.inflight import Delivery
from gateway.push import OUTCOMES
from gateway.status import Status
from telemetry import Ack

_LATENCY_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Tally:
    """The numbers of one gateway: metrics in a registry of their own, and `counts` by the status's keys."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.counts: Counts[str] = Counts()
        self._batches = _counter(registry, "batches", "Batches persisted in Pulsar")
        self._records = _counter(registry, "records", "Records inside the persisted batches")
        self._bytes = _counter(registry, "bytes", "Bytes of the persisted batches")
        self._refused = _counter(registry, "refused", "Batches put aside, by reason", "reason")
        self._joined = _counter(registry, "joined", "Batches that came again while they were in flight")
        self._acks = _counter(registry, "acks", "Acknowledgements published to devices")
        self._pauses = _counter(registry, "pauses", "Acknowledgements that asked for a pause")
        self._pushes = _counter(registry, "pushes", "Settings published to devices")
        self._answers = _counter(registry, "push_answers", "What devices said of pushed settings", "outcome")
        self._pulsar_failures = _counter(registry, "pulsar_failures", "Sends that failed and are retried", "result")
        self._mqtt_failures = _counter(registry, "mqtt_failures", "Broker connections that failed or ended")
        self._in_flight = _gauge(registry, "in_flight", "Batches taken and not yet persisted")
        self._in_flight_bytes = _gauge(registry, "in_flight_bytes", "Bytes of the batches in flight")
        self._oldest_s = _gauge(registry, "oldest_in_flight_seconds", "Age of the batch that waits longest")
        self._mqtt_up = _gauge(registry, "mqtt_up", "1 while subscribed at the MQTT broker")
        self._pulsar_up = _gauge(registry, "pulsar_up", "1 while the producer is connected to Pulsar")
        self._persist_s = Histogram(
            "waybill_gateway_persist_seconds",
            "From the arrival of a batch to Pulsar's receipt",
            registry=registry,
            buckets=_LATENCY_S,
        )

    def persisted(self, delivery: Delivery, now_s: float) -> None:
        """Pulsar has a batch, or has it among the refused ones."""
        self._persist_s.observe(now_s - delivery.arrived_s)
        if delivery.refusal is not None:
            self._refused.labels(delivery.refusal.reason).inc()
            self.counts["batches_refused"] += 1
            return
        self._batches.inc()
        self._records.inc(delivery.records)
        self._bytes.inc(len(delivery.payload))
        self.counts["batches_persisted"] += 1
        self.counts["records_persisted"] += delivery.records
        self.counts["bytes_persisted"] += len(delivery.payload)

    def joined(self) -> None:
        """A batch came again while it was in flight."""
        self._joined.inc()
        self.counts["batches_joined"] += 1

    def acknowledged(self, ack: Ack) -> None:
        """An acknowledgement was published."""
        self._acks.inc()
        self.counts["acks_published"] += 1
        if ack.pause_s:
            self._pauses.inc()
            self.counts["pauses_asked"] += 1

    def pushed(self) -> None:
        """Settings were published."""
        self._pushes.inc()
        self.counts["pushes_published"] += 1

    def answered(self, outcome: str) -> None:
        """A device said what became of its settings: one of `OUTCOMES`, or something else."""
        known = outcome if outcome in OUTCOMES else "unknown"
        self._answers.labels(known).inc()
        self.counts[f"pushes_{known.replace(' ', '_')}"] += 1

    def pulsar_failed(self, result: str) -> None:
        """A send failed and is retried."""
        self._pulsar_failures.labels(result).inc()
        self.counts["pulsar_failures"] += 1

    def connection_failed(self) -> None:
        """The connection to the broker ended or did not come up."""
        self._mqtt_failures.inc()

    def gauge(self, status: Status) -> None:
        """Set the gauges as the status has it."""
        self._in_flight.set(status.in_flight)
        self._in_flight_bytes.set(status.in_flight_bytes)
        self._oldest_s.set(status.oldest_in_flight_s)
        self._mqtt_up.set(status.mqtt_connected)
        self._pulsar_up.set(status.pulsar_connected)


def _counter(registry: CollectorRegistry, name: str, text: str, *labels: str) -> Counter:
    return Counter(f"waybill_gateway_{name}", text, labels, registry=registry)


def _gauge(registry: CollectorRegistry, name: str, text: str) -> Gauge:
    return Gauge(f"waybill_gateway_{name}", text, registry=registry)
