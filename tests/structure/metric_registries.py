"""Every metric that a process of the project exports, as its registry has it: name, type and labels.

A new program adds its registry here; the tests of names, pages, alert rules and dashboards then know its metrics.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from prometheus_client.registry import CollectorRegistry

from cloud_jobs.run_metrics import IngestMetrics, MaintenanceMetrics, RunMetrics
from cloud_jobs.status.centre_metrics import CentreCollector
from cloud_jobs.verdicts.run import VerdictMetrics
from edge_agent.status_endpoint import AgentCollector
from gateway.access.status import AccessMetrics
from gateway.alerts.metrics import AlertMetrics
from gateway.canary.watch import CanaryMetrics
from gateway.metrics import GatewayMetrics
from gateway.webhooks.status import WebhookMetrics
from geo.replication.cli import ReplicationCollector


class ExportedMetric(NamedTuple):
    """A metric as Prometheus shows it: a counter's name ends in `_total`."""

    name: str
    type: str
    labels: tuple[str, ...]
    text: str

    @property
    def sample_names(self) -> tuple[str, ...]:
        if self.type == "histogram":
            return tuple(self.name + end for end in ("_bucket", "_count", "_sum"))
        return (self.name,)


def _agent() -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(AgentCollector(dict))
    return registry


def _maintenance() -> CollectorRegistry:
    registry = CollectorRegistry()
    MaintenanceMetrics(registry)
    return registry


def _verdicts() -> CollectorRegistry:
    registry = CollectorRegistry()
    VerdictMetrics(registry, 3600.0)
    return registry


# By the word that follows `waybill_` in the names of a program's metrics.
REGISTRIES: Mapping[str, Callable[[], CollectorRegistry]] = {
    "access": lambda: AccessMetrics().registry,
    "agent": _agent,
    "alerts": lambda: AlertMetrics().registry,
    "canary": lambda: CanaryMetrics().registry,
    "centre": lambda: CentreCollector(60).registry(),
    "gateway": lambda: GatewayMetrics().registry,
    "ingest": lambda: IngestMetrics().registry,
    "jobs": lambda: RunMetrics("usage", 60).registry,
    "maintain": _maintenance,
    "verdicts": _verdicts,
    "webhooks": lambda: WebhookMetrics(("ops",)).registry,
    "replication": lambda: ReplicationCollector().registry(),
}


def exported(registry: CollectorRegistry) -> Iterator[ExportedMetric]:
    collectors: list[Any] = list(registry._collector_to_names)
    for collector in collectors:
        described = collector.describe() if hasattr(collector, "describe") else collector.collect()
        for metric in described:
            name = metric.name + ("_total" if metric.type == "counter" else "")
            labels = getattr(metric, "_labelnames", ()) or getattr(collector, "_labelnames", ())
            yield ExportedMetric(name, metric.type, tuple(labels), metric.documentation)


@cache
def by_program() -> Mapping[str, tuple[ExportedMetric, ...]]:
    return {word: tuple(exported(made())) for word, made in REGISTRIES.items()}


def every_metric() -> dict[str, ExportedMetric]:
    return {metric.name: metric for metrics in by_program().values() for metric in metrics}
