"""Asking the running agent, from the command line."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

from edge_agent.config import AgentSettings

LIVE_TIMEOUT_S = 2.0
MAX_ANSWER_BYTES = 1 << 20


def fetch_current_state(settings: AgentSettings) -> dict[str, Any]:
    """The state of the running agent, if it has an endpoint and is the one that answers; else nothing."""
    if settings.status.port == 0:
        return {}
    url = f"http://127.0.0.1:{settings.status.port}/status"
    try:
        with urllib.request.urlopen(url, timeout=LIVE_TIMEOUT_S) as answer:
            state: dict[str, Any] = json.loads(answer.read(MAX_ANSWER_BYTES))
            asked = (settings.device.tenant, settings.device.id)
            return state if (state.get("tenant"), state.get("device")) == asked else {}
    except (OSError, ValueError):
        return {}
