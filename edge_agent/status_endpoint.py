"""The loopback endpoint: `/metrics` for Prometheus, `/health` (200 or 503) and `/status`, both JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from prometheus_client.registry import CollectorRegistry

from edge_agent.errors import AgentError
from edge_agent.metrics import AgentCollector
from waybill.daemon.status_server import HttpAnswer, StatusServer, json_answer, metrics_answer

State = Callable[[], dict[str, Any]]


def serve_status(port: int, state: State, health: State) -> StatusServer:
    """Serves what `state` and `health` say: 503 while the latter's `healthy` is false, or the state cannot be read.

    Raises OSError.
    """
    registry = CollectorRegistry()
    registry.register(AgentCollector(state))

    def answer_health() -> HttpAnswer:
        answer = health()
        return json_answer(json.dumps(answer), is_good=answer["healthy"] is not False)

    def or_error(answer: Callable[[], HttpAnswer]) -> Callable[[], HttpAnswer]:
        def answer_or_error() -> HttpAnswer:
            try:
                return answer()
            except AgentError as error:
                return json_answer(json.dumps({"error": str(error)}), is_good=False)

        return answer_or_error

    routes = {
        "/metrics": or_error(lambda: metrics_answer(registry)),
        "/health": or_error(answer_health),
        "/status": or_error(lambda: json_answer(json.dumps(state()))),
    }
    return StatusServer("127.0.0.1", port, routes)
