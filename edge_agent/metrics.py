"""The metrics of the agent. Every name is in `docs/edge-agent.md`; a test looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

COUNTERS = {
    "messages": ("edge_agent_messages", "Messages taken in since the start"),
    "payload_bytes": ("edge_agent_payload_bytes", "Their payloads"),
    "commits": ("edge_agent_commits", "Group commits"),
    "batches_sent": ("edge_agent_batches_sent", "Batches handed to an uplink"),
    "batches_again": ("edge_agent_batches_again", "Batches that will be sent once more"),
    "records_sent": ("edge_agent_records_sent", "Records in the batches sent"),
    "wire_bytes_sent": ("edge_agent_wire_bytes_sent", "Bytes sent on the wire, with headers and repetitions"),
    "wire_bytes_received": ("edge_agent_wire_bytes_received", "Bytes received on the wire"),
    "acks_ignored": ("edge_agent_acks_ignored", "Acknowledgements of nothing that was sent"),
    "control_dead_letters": (
        "edge_agent_control_dead_letters",
        "Messages of the gateway that could not be read or handled",
    ),
    "flash_bytes": ("edge_agent_flash_bytes", "Bytes that the process caused to be written to storage"),
}
GAUGES = {
    "head": ("edge_agent_head", "Highest sequence number of the present epoch"),
    "local_broker": ("edge_agent_local_broker", "1 when connected to the vehicle's broker"),
    "uplink_healthy": (
        "edge_agent_uplink_healthy",
        "1 when the uplink is connected and nothing waits too long for its acknowledgement",
    ),
    "retrying": ("edge_agent_retrying_batches", "Batches that were refused and will be tried again"),
    "dead_letter_batches": (
        "edge_agent_dead_letter_batches",
        "Batches, of one record each, that were refused too often: kept, not sent",
    ),
    "dead_letter_records": ("edge_agent_dead_letter_records", "Records in them"),
    "gaps": ("edge_agent_gaps", "Record ids that are neither waiting nor acknowledged nor declared lost; should be 0"),
    "in_flight": ("edge_agent_in_flight_batches", "Batches sent and not acknowledged"),
    "oldest_age_s": ("edge_agent_oldest_age_seconds", "Age of the oldest record that waits; 0 when none does"),
    "paused_for_s": ("edge_agent_paused_seconds", "How much longer the gateway wants silence"),
    "wire_bytes_today": ("edge_agent_wire_bytes_today", "Metered bytes of this UTC day"),
    "wire_bytes_this_month": ("edge_agent_wire_bytes_this_month", "Metered bytes of this UTC month"),
    "rss_bytes": ("edge_agent_resident_bytes", "Resident memory"),
}
DEPTH = ("edge_agent_depth_records", "Records that wait, by class")
DEPTH_BYTES = ("edge_agent_depth_bytes", "Bytes of the batches that wait, by class")
MALFORMED = ("edge_agent_malformed_messages", "Messages that do not follow the contract, by reason")
COUNTER = (
    "edge_agent_counter",
    "Counters that outlive a restart: acknowledged, duplicates, lost_…, rebuilt, corrected, …",
)


class AgentCollector(Collector):
    """Reads the state when Prometheus asks, so that nothing is counted twice."""

    def __init__(self, state: Callable[[], dict[str, Any]]) -> None:
        self._state = state

    def describe(self) -> Iterator[Metric]:
        """Nothing beforehand: the state is not ready when this is registered."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """All metrics, now."""
        state = self._state()
        for key, (name, text) in COUNTERS.items():
            yield CounterMetricFamily(name, text, value=float(state[key]))
        for key, (name, text) in GAUGES.items():
            yield GaugeMetricFamily(name, text, value=float(state[key] or 0))
        yield from self._by_class(state)
        yield _labelled(CounterMetricFamily(*MALFORMED, labels=["reason"]), state["malformed"])
        yield _labelled(GaugeMetricFamily(*COUNTER, labels=["name"]), state["counters"])

    @staticmethod
    def _by_class(state: dict[str, Any]) -> Iterator[Metric]:
        classes = state["classes"]
        records = {name: one["records"] for name, one in classes.items()}
        yield _labelled(GaugeMetricFamily(*DEPTH, labels=["class"]), records)
        sizes = {name: one["bytes"] for name, one in classes.items()}
        yield _labelled(GaugeMetricFamily(*DEPTH_BYTES, labels=["class"]), sizes)


def _labelled(family: Any, values: dict[str, int]) -> Metric:
    for label, value in values.items():
        family.add_metric([label], float(value))
    metric: Metric = family
    return metric
