"""A job serves its metrics and its health over real HTTP, on the port of its own, or not at all."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

import pytest
from prometheus_client.registry import CollectorRegistry
from structlog.testing import capture_logs

from cloud_jobs.config import CloudSettings
from cloud_jobs.metrics.config import MetricsSettings
from cloud_jobs.metrics.run_metrics import RunMetrics
from cloud_jobs.metrics.serving import served_metrics
from deploy.local.ports import free_port
from waybill.settings import SettingsError, validate


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


@pytest.mark.parametrize(("healthy", "code"), [(True, 200), (None, 200), (False, 503)])
def test_only_what_is_known_to_be_wrong_is_503(healthy: bool | None, code: int) -> None:
    def health() -> Mapping[str, Any]:
        return {"healthy": healthy}

    port = free_port()
    with served_metrics(MetricsSettings(ingest_port=port), "ingest", CollectorRegistry(), health):
        assert fetched(port, "/health")[0] == code


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


def test_two_commands_cannot_have_one_port() -> None:
    cluster = {"name": "hq", "service_url": "pulsar://hq:6650", "admin_url": "http://hq:8080"}
    document = {"lake": "lake", "checkpoints": "c", "clusters": [cluster]}
    with pytest.raises(SettingsError) as refused:
        validate(CloudSettings, document | {"metrics": {"usage_port": 9471, "geofence_port": 9471}}, "cloud.toml")
    assert "usage_port and geofence_port are both 9471" in "\n".join(refused.value.lines)
    with pytest.raises(SettingsError):
        validate(CloudSettings, document | {"metrics": {"close_port": 9471}}, "cloud.toml")
