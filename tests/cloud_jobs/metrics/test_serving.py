"""A job serves its metrics and its health over real HTTP, on the port of its own, or not at all."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import pytest
from structlog.testing import capture_logs

from cloud_jobs.job_settings import MetricsSettings
from cloud_jobs.run_metrics import RunMetrics, served_metrics
from deploy.local.ports import free_port


def fetched(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_metrics_and_health_are_served_while_the_job_runs() -> None:
    port, job = free_port(), RunMetrics("usage", 60)
    with served_metrics(MetricsSettings(usage_port=port), "usage", job.registry, job.health):
        with job.run() as measured:
            measured.did({"rows": 3})
        assert 'waybill_jobs_rows_total{command="usage"} 3.0' in fetched(port, "/metrics")[1]
        code, text = fetched(port, "/health")
        assert (code, json.loads(text)["healthy"]) == (200, True)
    with pytest.raises(urllib.error.URLError):
        fetched(port, "/metrics")


def test_without_a_port_nothing_is_served_and_a_port_that_is_taken_stops_no_job() -> None:
    port, job = free_port(), RunMetrics("usage", 60)
    settings = MetricsSettings(usage_port=port)
    with capture_logs() as lines:
        with served_metrics(MetricsSettings(), "usage", job.registry, job.health):
            pass
        assert lines == []
        with (
            served_metrics(settings, "usage", job.registry, job.health),
            served_metrics(settings, "usage", job.registry, job.health),
        ):
            assert fetched(port, "/health")[0] == 200
    (line,) = lines
    assert (line["log_level"], line["event"], line["address"]) == (
        "warning",
        "metrics are not served",
        f"127.0.0.1:{port}",
    )
