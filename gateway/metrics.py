"""What is counted, for Prometheus. `docs/gateway.md` lists every metric."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_LATENCY_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """The counters and gauges of one gateway, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.batches = _counter(registry, "batches", "Batches persisted in Pulsar")
        self.records = _counter(registry, "records", "Records inside the persisted batches")
        self.bytes = _counter(registry, "bytes", "Bytes of the persisted batches")
        self.refused = _counter(registry, "refused", "Batches put aside, by reason", "reason")
        self.joined = _counter(registry, "joined", "Batches that came again while they were in flight")
        self.acks = _counter(registry, "acks", "Acknowledgements published to devices")
        self.pauses = _counter(registry, "pauses", "Acknowledgements that asked for a pause")
        self.pulsar_failures = _counter(registry, "pulsar_failures", "Sends that failed and are retried", "result")
        self.mqtt_failures = _counter(registry, "mqtt_failures", "Connections to the MQTT broker that failed or ended")
        self.in_flight = _gauge(registry, "in_flight", "Batches taken and not yet persisted")
        self.in_flight_bytes = _gauge(registry, "in_flight_bytes", "Bytes of the batches in flight")
        self.oldest_s = _gauge(registry, "oldest_in_flight_seconds", "Age of the batch that waits longest")
        self.mqtt_up = _gauge(registry, "mqtt_up", "1 while subscribed at the MQTT broker")
        self.pulsar_up = _gauge(registry, "pulsar_up", "1 while the producer is connected to Pulsar")
        self.persist_s = Histogram(
            "waybill_gateway_persist_seconds",
            "From the arrival of a batch to Pulsar's receipt",
            registry=registry,
            buckets=_LATENCY_S,
        )


def _counter(registry: CollectorRegistry, name: str, text: str, *labels: str) -> Counter:
    return Counter(f"waybill_gateway_{name}", text, labels, registry=registry)


def _gauge(registry: CollectorRegistry, name: str, text: str) -> Gauge:
    return Gauge(f"waybill_gateway_{name}", text, registry=registry)
