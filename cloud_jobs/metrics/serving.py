"""Serves the metrics of a job from threads of its own, while the job runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import structlog
from prometheus_client.registry import CollectorRegistry

from cloud_jobs.metrics.config import MetricsSettings
from waybill.daemon.status_server import HttpAnswer, Routes, StatusServer, json_answer, metrics_answer

Health = Callable[[], Mapping[str, Any]]
"""What `/health` says: 503 while its `healthy` is False; None, unknown, is 200."""

_log = structlog.get_logger("metrics")


def metric_routes(registry: CollectorRegistry, health: Health) -> Routes:
    """`/metrics` for Prometheus, and `/health` for whoever starts the job again."""

    def answer_health() -> HttpAnswer:
        answer = health()
        return json_answer(json.dumps(answer), is_good=answer["healthy"] is not False)

    return {"/metrics": lambda: metrics_answer(registry), "/health": answer_health}


@contextmanager
def served_metrics(
    settings: MetricsSettings, command: str, registry: CollectorRegistry, health: Health
) -> Iterator[None]:
    """Serves while the block runs, if the settings name a port.

    A port that cannot be had is logged, and the job runs without: records matter more than their metrics.
    """
    port = settings.port_of(command)
    if port is None:
        yield
        return
    try:
        server = StatusServer(settings.host, port, metric_routes(registry, health))
    except OSError as error:
        where = f"{settings.host}:{port}"
        _log.warning("metrics are not served", command=command, address=where, error=error.strerror or str(error))
        yield
        return
    with server:
        yield
