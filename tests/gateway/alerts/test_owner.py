"""What whoever claims partitions says while the cluster does not answer, and of what it may not hold."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from deploy.local import free_port
from gateway.alerts.config import AlertSettings
from gateway.alerts.evaluation import LiveEvents
from gateway.alerts.metrics import AlertMetrics
from gateway.alerts.owner import PartitionOwner
from tests.gateway.alerts.scripted_partition import RULES
from tests.waiting import wait_until
from waybill.settings import validate


def alert_settings(port: int) -> AlertSettings:
    table = {
        "name": "eu-1",
        "region": "eu",
        "insecure": True,
        "tenants": ["acme"],
        "pulsar": {"service_url": f"pulsar://127.0.0.1:{port}", "operation_timeout_s": 1},
        "fences": {"unsigned": True},
    }
    return validate(AlertSettings, table, "alerts.toml")


@pytest.mark.timeout(60)
def test_a_process_whose_cluster_does_not_answer_from_the_start_says_so_once() -> None:
    owner = PartitionOwner(alert_settings(free_port()), lambda: RULES, LiveEvents, AlertMetrics())
    with capture_logs() as logs:
        owner.start()
        wait_until(lambda: "batches are not known" in owner.problem)
        first = owner.turned_s
        # it looked again
        wait_until(lambda: owner.turned_s > first + 2)
        owner.close()
    assert [one["event"] for one in logs].count("partitions not known") == 1
