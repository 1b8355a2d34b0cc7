"""What whoever claims partitions says while the cluster does not answer, and of what it may not hold."""

from __future__ import annotations

import threading
from typing import Any

import pulsar
import pytest
from structlog.testing import capture_logs

from deploy.local import free_port
from gateway.alerts import owner as owner_module
from gateway.alerts.config import AlertSettings
from gateway.alerts.evaluation import LiveEvents
from gateway.alerts.metrics import AlertMetrics
from gateway.alerts.owner import PartitionOwner
from gateway.alerts.sharing import ClaimState
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


class _Cluster:
    """A cluster with partitions that nobody has; what is subscribed to is noted."""

    def __init__(self, partitions: int) -> None:
        self.names = [f"persistent://acme/telemetry-eu/batches-partition-{number}" for number in range(partitions)]
        self.subscribed: set[str] = set()

    def get_topic_partitions(self, _: str) -> list[str]:
        return self.names

    def subscribe(self, name: str, *_: Any, **__: Any) -> Any:
        self.subscribed.add(name)
        return _Subscription()

    def create_producer(self, *_: Any, **__: Any) -> Any:
        raise pulsar.Timeout("nobody is heard")

    def close(self) -> None:
        pass


class _Subscription:
    def close(self) -> None:
        pass


class _Served:
    """A partition that is owned until it is stopped."""

    def __init__(self, state: Any, *_: Any, **__: Any) -> None:
        self.name, self._stop = state.name, threading.Event()
        self.lost_reason, self.is_rebuilt, self.acknowledged, self.unreceipted = "", True, None, 0

    def run(self, _: float) -> None:
        self._stop.wait()

    def stop(self) -> None:
        self._stop.set()


@pytest.mark.timeout(60)
def test_what_a_process_may_not_hold_any_more_is_known_to_have_no_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = _Cluster(5)
    monkeypatch.setattr(owner_module, "MAX_PARTITIONS", 3)
    monkeypatch.setattr(owner_module, "open_pulsar_client", lambda *_, **__: cluster)
    monkeypatch.setattr(owner_module, "OwnedPartition", _Served)
    owner = PartitionOwner(alert_settings(6650), lambda: RULES, LiveEvents, AlertMetrics())
    owner.start()
    try:
        wait_until(lambda: cluster.subscribed == {*cluster.names})
        held = {one.name for one in owner.held}
        assert len(held) == 3
        wait_until(lambda: {*owner.of_state(ClaimState.UNKNOWN)} == {*cluster.names} - held)
    finally:
        owner.close()
