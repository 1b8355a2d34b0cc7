"""Asking the running agent, from the command line."""

from __future__ import annotations

from typing import Any

from edge_agent.config import AgentSettings
from waybill.daemon.status_reader import StatusUnavailable, fetch_status

LIVE_TIMEOUT_S = 2.0


def fetch_current_state(settings: AgentSettings) -> dict[str, Any]:
    """The state of the running agent, if it has an endpoint and is the one that answers; else nothing."""
    if settings.status.port == 0:
        return {}
    try:
        state = fetch_status("127.0.0.1", settings.status.port, "status", timeout_s=LIVE_TIMEOUT_S)
    except StatusUnavailable:
        return {}
    asked = (settings.device.tenant, settings.device.id)
    return state if (state.get("tenant"), state.get("device")) == asked else {}
