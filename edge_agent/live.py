"""What a running agent knows of itself, as plain values: for metrics, health and `status`."""

from __future__ import annotations

import time
from typing import Any

from edge_agent.agent import Agent
from edge_agent.process import flash_bytes, resident_bytes

STALE_S = 60.0
"""A thread that was not seen for so long is stuck."""


def live_state(agent: Agent) -> dict[str, Any]:
    """Counters since the start of this run, connections and budget."""
    drain, intake, taken, sent = agent.drainer, agent.listener, agent.reception.taken, agent.drainer.dispatcher.sent
    spent = agent.account.spent
    return {
        "uptime_s": round(time.monotonic() - agent.started_s, 1),
        "local_broker": intake.connected,
        "region": drain.connected_region,
        "uplink_well": drain.is_well,
        "paused_for_s": round(drain.paused_for_s, 1),
        "link": agent.account.link,
        "messages": taken.messages,
        "payload_bytes": taken.payload_bytes,
        "commits": taken.commits,
        "odd": dict(taken.odd),
        "waiting_for_commit": agent.reception.waiting,
        "batches_sent": sent.batches,
        "batches_again": sent.again,
        "records_sent": sent.records,
        "batch_bytes_sent": sent.size,
        "resting": drain.dispatcher.resting,
        "in_flight": drain.dispatcher.in_flight,
        "wire_bytes_sent": agent.account.sent_bytes,
        "wire_bytes_received": agent.account.received_bytes,
        "wire_bytes_today": spent.day_bytes,
        "wire_bytes_this_month": spent.month_bytes,
        "flash_bytes": flash_bytes(),
        "rss_bytes": resident_bytes(),
    }


def is_alive(agent: Agent) -> bool:
    """Whether both threads run and were seen lately."""
    now_s = time.monotonic()
    beats = (agent.listener.beat_s, agent.drainer.beat_s)
    return agent.is_running and all(now_s - beat_s < STALE_S for beat_s in beats)
