"""What a running agent knows of itself, as plain values: for metrics, health and `status`."""

from __future__ import annotations

import time
from typing import Any

from edge_agent.agent import Agent
from edge_agent.enrolment.certificate_state import certificate_state
from edge_agent.holding import held_classes
from edge_agent.intake.unreadable import UNHEALTHY
from edge_agent.process import flash_bytes
from edge_agent.vehicle_broker import KEEPS
from waybill.daemon.memory import resident_bytes

STALE_S = 60.0
"""A thread that was not seen for so long is stuck."""


def counters_of(agent: Agent) -> dict[str, Any]:
    """Counters since the settings were loaded. The agent may have been stopped."""
    intake, sent = agent.intake.counters, agent.drainer.dispatcher.counters
    return {
        "acks_ignored": sent.acks_ignored,
        "control_dead_letters": agent.dead_letters.count,
        "messages": intake.messages,
        "payload_bytes": intake.payload_bytes,
        "commits": intake.commits,
        "vehicle_sessions_lost": agent.intake_loop.broker_watch.sessions_lost,
        "malformed": dict(intake.malformed),
        "not_recorded": dict(intake.not_recorded),
        "unknown_members": dict(intake.unknown_members),
        "unusable_members": dict(intake.unusable_members),
        "enrolment": dict(agent.enrolment.outcomes) if agent.enrolment is not None else {},
        "batches_sent": sent.batches,
        "batches_again": sent.resent,
        "heartbeats_sent": agent.drainer.statements.heartbeats,
        "records_sent": sent.records,
        "batch_bytes_sent": sent.size,
        "wire_bytes_sent": agent.link_budget.sent_bytes,
        "wire_bytes_received": agent.link_budget.received_bytes,
    }


def add_counters(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Counters of the process: those from before its settings were loaded anew, and those since."""
    return {
        key: add_counters(before.get(key, {}), value) if isinstance(value, dict) else before.get(key, 0) + value
        for key, value in {**dict.fromkeys(before, 0), **now}.items()
    }


def current_state(agent: Agent) -> dict[str, Any]:
    """Connections and budget as they are now, and the counters of `counters_of`."""
    drain, intake, usage = agent.drainer, agent.intake_loop, agent.link_budget.usage
    return {
        **counters_of(agent),
        "local_broker": intake.connected,
        "vehicle_broker": intake.broker_watch.state(time.monotonic()),
        "unreadable": agent.intake.unreadable.rows(),
        "meant_members": dict(agent.intake.unreadable.meant_members),
        "messages_readable": agent.intake.unreadable.state(time.monotonic()) not in UNHEALTHY,
        "vehicle_broker_dropped": intake.broker_watch.dropped,
        "region": drain.health.connected_region,
        "uplink_healthy": drain.health.is_healthy,
        "uplink": uplink_state(agent),
        "paused_for_s": round(drain.paused_for_s, 1),
        "link": agent.link_budget.link,
        **certificate_state(agent.settings, time.time()),
        "certificate_problem": agent.certificate_problem or None,
        # Beside the certificate: whether one that has not ended is taken says the region alone.
        "uplink_problem": drain.regions.last_failure or None,
        "held_back": _held_back(agent),
        "waiting_for_commit": agent.intake.waiting,
        "retrying": drain.dispatcher.retrying,
        "stated_until_s": _stated_until_s(agent),
        "in_flight": drain.dispatcher.in_flight,
        "wire_bytes_today": usage.day_bytes,
        "wire_bytes_this_month": usage.month_bytes,
        "flash_bytes": flash_bytes(),
        "rss_bytes": resident_bytes(),
    }


def _stated_until_s(agent: Agent) -> int:
    statement = agent.drainer.inbox.statement
    return 0 if statement is None else statement.stated_us // 1_000_000


def uplink_state(agent: Agent) -> str:
    """`acknowledges`, `unknown` (connected, and no acknowledgement yet), or what is wrong.

    That is `silent`, `no gateway`, `not connected`, or `taken over`: the broker closes connections again and again,
    probably because another agent has this device's id.
    """
    drain = agent.drainer
    if drain.regions.takeovers.is_suspected:
        return "taken over"
    if drain.health.connected_region is None:
        return "not connected"
    if drain.health.gateway_absent:
        return "no gateway"
    if not drain.health.is_healthy:
        return "silent"
    return "acknowledges" if drain.health.region_acked else "unknown"


def buffer_state(agent: Agent) -> str:
    """`stores`, `cannot commit`, or `drops records`: some were dropped for want of space in the last minute."""
    if agent.intake.is_failing:
        return "cannot commit"
    dropped_at_s = agent.retention.dropped_at_s
    is_dropping = dropped_at_s is not None and time.monotonic() - dropped_at_s < STALE_S
    return "drops records" if is_dropping else "stores"


def health_state(agent: Agent) -> dict[str, Any]:
    """What `/health` says: `healthy` is true, false, or null while no region has acknowledged anything."""
    uplink, alive, local, buffer = (
        uplink_state(agent),
        is_alive(agent),
        agent.intake_loop.connected,
        buffer_state(agent),
    )
    certificate = certificate_state(agent.settings, time.time())["certificate"]
    vehicle_broker = agent.intake_loop.broker_watch.state(time.monotonic())
    messages = agent.intake.unreadable.state(time.monotonic())
    is_kept = (vehicle_broker, buffer) == (KEEPS, "stores") and messages not in UNHEALTHY
    near = alive and local and is_kept and certificate not in {"none", "expired"}
    return {
        "healthy": None if near and uplink == "unknown" else near and uplink == "acknowledges",
        "threads": alive,
        "local_broker": local,
        "vehicle_broker": vehicle_broker,
        "messages": messages,
        "buffer": buffer,
        "uplink": uplink,
        "certificate": certificate,
        "held_back": _held_back(agent),
    }


def _held_back(agent: Agent) -> dict[str, str]:
    return held_classes(agent.settings, agent.link_budget.usage.add(time.time(), 0))


def is_alive(agent: Agent) -> bool:
    """Whether both threads run and were seen lately."""
    now_s = time.monotonic()
    beats = (agent.intake_loop.heartbeat_s, agent.drainer.heartbeat_s)
    return agent.is_running and all(now_s - beat_s < STALE_S for beat_s in beats)
