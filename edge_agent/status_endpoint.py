"""The loopback endpoint: `/metrics` for Prometheus, `/health` (200 or 503) and `/status`, both JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from waybill.daemon.status_server import HttpAnswer, StatusServer, json_answer, metrics_answer

# Metrics of the agent; `docs/edge-agent.md` lists them.

COUNTERS = {
    "messages": ("waybill_agent_messages_total", "Messages received since the start"),
    "commits": ("waybill_agent_commits_total", "Group commits"),
    "vehicle_sessions_lost": (
        "waybill_agent_vehicle_sessions_lost_total",
        "Connections at which the vehicle's broker had forgotten the session, and what it kept for the agent",
    ),
    "batches_sent": ("waybill_agent_batches_sent_total", "Batches handed to an uplink"),
    "batches_again": ("waybill_agent_batches_again_total", "Batches that will be sent once more"),
    "heartbeats_sent": ("waybill_agent_heartbeats_sent_total", "Heartbeats handed to an uplink"),
    "records_sent": ("waybill_agent_records_sent_total", "Records in the batches sent"),
    "wire_bytes_sent": ("waybill_agent_wire_sent_bytes_total", "Bytes sent on the wire, with headers and repetitions"),
    "wire_bytes_received": ("waybill_agent_wire_received_bytes_total", "Bytes received on the wire"),
    "control_unreadable": (
        "waybill_agent_unreadable_control_messages_total",
        "Messages of the gateway that could not be read or handled",
    ),
    "reloads_refused": (
        "waybill_agent_refused_reloads_total",
        "Reloads with settings that cannot be used: the current ones stayed",
    ),
    "not_recorded": ("waybill_agent_not_recorded_messages_total", "Retained and empty messages, which are no records"),
    # Stored in the buffer: these survive a restart.
    "acknowledged": ("waybill_agent_acknowledged_records_total", "Record ids that a region acknowledged"),
    "duplicates": ("waybill_agent_duplicate_messages_total", "Messages that were delivered again, and stored once"),
    "possible_duplicates": (
        "waybill_agent_possible_duplicate_messages_total",
        "Messages like a stored one, and not proven to be it: stored again",
    ),
    "late": (
        "waybill_agent_late_messages_total",
        "Messages with a time before what was stated already: older than `time.grace_s`",
    ),
    "unencodable": ("waybill_agent_unencodable_records_total", "Records that no batch can hold, carried raw"),
    "refused": (
        "waybill_agent_refused_batches_total",
        "Batches that the region refused, or that are too large for its broker",
    ),
    "batches_dead_lettered": (
        "waybill_agent_batches_dead_lettered_total",
        "Batches, of one record each, that were refused too often",
    ),
    "corrected": (
        "waybill_agent_corrected_records_total",
        "Records whose time was corrected after a jump of the clock",
    ),
    "uncorrected": (
        "waybill_agent_uncorrected_records_total",
        "Records that cannot be written with their corrected time",
    ),
    "rebuilt": ("waybill_agent_rebuilt_buffers_total", "Damaged buffers that were rebuilt"),
    "foreign_archived": ("waybill_agent_foreign_buffers_total", "Buffers of other devices that were archived"),
}
GAUGES = {
    "uncounted": ("waybill_agent_uncounted_records", "Record ids that a rebuilt buffer cannot count any more"),
    "head": ("waybill_agent_head_seq", "Highest sequence number of the present epoch"),
    "local_broker": ("waybill_agent_local_broker_up", "1 when connected to the vehicle's broker"),
    "messages_readable": (
        "waybill_agent_messages_readable",
        "0 when no message of the vehicle can be read, of the last ten minutes",
    ),
    "arrivals_proven": (
        "waybill_agent_arrivals_proven",
        "0 when the vehicle's broker does not let the agent find out which messages waited there",
    ),
    "vehicle_broker_dropped": (
        "waybill_agent_vehicle_broker_dropped_messages",
        "Messages that the vehicle's broker dropped since its start, for the agent or another client",
    ),
    "uplink_healthy": (
        "waybill_agent_uplink_healthy",
        "1 when the uplink is connected and nothing waits too long for its acknowledgement",
    ),
    "retrying": ("waybill_agent_retrying_batches", "Batches that were refused and will be tried again"),
    "dead_letter_batches": (
        "waybill_agent_dead_letter_batches",
        "Batches, of one record each, that were refused too often: kept, not sent",
    ),
    "dead_letter_records": ("waybill_agent_dead_letter_records", "Records in them"),
    "gaps": (
        "waybill_agent_missing_records",
        "Record ids that are neither waiting nor acknowledged nor declared lost; should be 0",
    ),
    "in_flight": ("waybill_agent_in_flight_batches", "Batches sent and not acknowledged"),
    "oldest_age_s": ("waybill_agent_oldest_age_seconds", "Age of the oldest record that waits; 0 when none does"),
    "paused_for_s": ("waybill_agent_paused_seconds", "Remaining pause that the gateway asked for"),
    "wire_bytes_today": ("waybill_agent_wire_today_bytes", "Metered bytes of this UTC day"),
    "wire_bytes_this_month": ("waybill_agent_wire_this_month_bytes", "Metered bytes of this UTC month"),
    "certificate_ends_s": (
        "waybill_agent_certificate_ends_timestamp_seconds",
        "When the certificate that the uplinks show ends, since 1970; 0 without one",
    ),
    "rss_bytes": ("waybill_agent_resident_bytes", "Resident memory"),
}
BY_CLASS = {
    "records": ("waybill_agent_depth_records", "Records that wait, by class"),
    "bytes": ("waybill_agent_depth_bytes", "Bytes of the batches that wait, by class"),
}
BY_MAPPING = {
    "messages": ("waybill_agent_mapped_messages_total", "Messages that a mapping read or refused, by mapping"),
    "records": ("waybill_agent_mapped_records_total", "Records that a mapping made, by mapping"),
    "refused": ("waybill_agent_mapping_refusals_total", "Messages and elements that a mapping refused, by mapping"),
}
LABELLED_COUNTERS = {
    "malformed": ("reason", "waybill_agent_malformed_messages_total", "Messages that became raw records, by reason"),
    "left_out_members": (
        "member",
        "waybill_agent_left_out_members_total",
        "Members of messages, by name, that are unknown or have an unusable value: the record is without them",
    ),
    "enrolment": (
        "outcome",
        "waybill_agent_enrolment_attempts_total",
        "Attempts to get a certificate, by outcome: enrolled, renewed or failed",
    ),
}
STORED_BY_REASON = {
    "lost_": ("waybill_agent_lost_records_total", "Records that were declared lost, by reason"),
    "failed_commits_": ("waybill_agent_failed_commits_total", "Commits that failed, by reason"),
    "epochs_": (
        "waybill_agent_new_epochs_total",
        "Epochs begun because the buffer is another one than was left, by reason",
    ),
}
"""By the beginning of the stored names; the reason follows it."""


State = dict[str, Any]
States = Callable[[], Mapping[str, State]]
"""The state of each device by its id, or that of a single one by ""."""
_OF_PROCESS = {COUNTERS["reloads_refused"][0], GAUGES["rss_bytes"][0]}
"""Metrics that the devices of a process share."""


class AgentCollector(Collector):
    """Reads the states when Prometheus asks. The metrics of several devices have the label `device`."""

    def __init__(self, states: States) -> None:
        self._states = states

    def collect(self) -> Iterator[Metric]:
        """All metrics, now; without values for an empty state."""
        families: dict[str, Any] = {}
        for device, state in (self._states() or {"": {}}).items():
            for made, name, text, label, values in _metrics(state):
                own = {"device": device} if device and name not in _OF_PROCESS else {}
                if name in families and not own:
                    continue
                family = families.setdefault(name, made(name, text, labels=[*own, *label]))
                for its_label, value in values.items():
                    family.add_metric([*own.values(), *its_label], float(value))
        yield from families.values()


def _metrics(state: State) -> Iterator[tuple[Any, str, str, tuple[str, ...], Mapping[Any, float]]]:
    """Each metric of one device: type, name, text, labels, and values by those of the labels.

    A device that does not run has only the values that are in its state: a counter that fell to 0 would seem to rise.
    """
    stored = state.get("counters", {})
    values = {**stored, **state}
    known = COUNTERS.keys() | GAUGES.keys() if "problem" not in state else values.keys()
    for made, families in ((CounterMetricFamily, COUNTERS), (GaugeMetricFamily, GAUGES)):
        for key, (name, text) in families.items():
            yield made, name, text, (), {(): values.get(key) or 0} if key in known else {}
    for key, (label, name, text) in LABELLED_COUNTERS.items():
        yield CounterMetricFamily, name, text, (label,), {(one,): count for one, count in state.get(key, {}).items()}
    for key, (name, text) in BY_MAPPING.items():
        by_mapping = {(one["mapping"],): one[key] for one in state.get("mappings", [])}
        yield CounterMetricFamily, name, text, ("mapping",), by_mapping
    for prefix, (name, text) in STORED_BY_REASON.items():
        by_reason = {(key.removeprefix(prefix),): value for key, value in stored.items() if key.startswith(prefix)}
        yield CounterMetricFamily, name, text, ("reason",), by_reason
    for key, (name, text) in BY_CLASS.items():
        by_class = {(class_name,): one[key] for class_name, one in state.get("classes", {}).items()}
        yield GaugeMetricFamily, name, text, ("class",), by_class


def serve_status(port: int, states: States, health: Callable[[], State]) -> StatusServer:
    """Serves states and `health`; the latter with 503 while its `healthy` is false. Raises OSError."""
    registry = CollectorRegistry()
    registry.register(AgentCollector(states))

    def answer_health() -> HttpAnswer:
        answer = health()
        return json_answer(json.dumps(answer), is_good=answer["healthy"] is not False)

    def answer_status() -> HttpAnswer:
        found = states()
        return json_answer(json.dumps(found.get("", {"devices": found})))

    routes = {"/metrics": lambda: metrics_answer(registry), "/health": answer_health, "/status": answer_status}
    return StatusServer("127.0.0.1", port, routes)
