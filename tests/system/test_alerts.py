"""Alert processes on a real Pulsar: what happens is said within the region, once or more, and nothing else is."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from deploy.local import PulsarCluster, wait_all
from gateway.errors import NoAnswer
from tests.system.alert_region import AlertProcess, AlertRegion, Drive
from tests.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.system, pytest.mark.own_servers]

ROUNDS = 20


@pytest.fixture(scope="module")
def region(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AlertRegion]:
    """A Pulsar of our own: what is in its topics is known."""
    folder = tmp_path_factory.mktemp("alerts")
    region = AlertRegion(PulsarCluster("eu", folder / "pulsar"), folder)
    region.pulsar.start()
    try:
        wait_all((region.pulsar,), 120)
        admin = f"{region.pulsar.admin_url}/admin/v2"
        wait_until(lambda: "eu" in httpx.get(f"{admin}/clusters").json(), 20)
        httpx.put(f"{admin}/tenants/fleet", json={"allowedClusters": ["eu"]}).raise_for_status()
        retention = {"retention_policies": {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}}
        for name in ("telemetry-eu", "alerts-eu", "reference"):
            httpx.put(f"{admin}/namespaces/fleet/{name}", json=retention).raise_for_status()
        httpx.put(f"{admin}/persistent/fleet/telemetry-eu/batches/partitions", json=2).raise_for_status()
        region.publish_fences()
        yield region
    finally:
        region.pulsar.kill()


@pytest.fixture
def processes(region: AlertRegion) -> Iterator[Callable[..., AlertProcess]]:
    made: list[AlertProcess] = []

    def make(name: str, more: str = "") -> AlertProcess:
        one = region.process(name, more)
        one.start()
        made.append(one)
        return one

    yield make
    for one in made:
        one.process.stop()


def held(*several: AlertProcess) -> list[int]:
    """How many partitions each has and serves."""
    found = []
    for one in several:
        try:
            found.append(one.held)
        except NoAnswer:
            found.append(0)
    return found


def truth(drives: list[Drive]) -> set[str]:
    return {name for one in drives for name in one.truth()}


def test_two_processes_share_the_partitions_and_say_what_the_engine_says_soon_and_once(
    region: AlertRegion, processes: Callable[..., AlertProcess]
) -> None:
    first, second = processes("both-1"), processes("both-2")
    wait_until(lambda: held(first, second) == [1, 1], 60)
    drives = [Drive(f"both-{number}", ROUNDS) for number in range(10)]
    with region.sender() as sender:
        for number in range(ROUNDS):
            sender.send_round(drives, number)
    wait_until(lambda: region.ids(drives) >= truth(drives), 20)
    alerts = region.alerts(one.device for one in drives)
    assert sorted(alert.id for alert, _ in alerts) == sorted(truth(drives)), "each once, and none invented"
    events = {name: event for one in drives for name, event in one.truth().items()}
    assert {alert.id: alert.event for alert, _ in alerts} == events
    assert {alert.kind for alert, _ in alerts} == {"enter", "exit", "forward", "backward"}
    delays_ms = sorted(persisted_ms - alert.received_ms for alert, persisted_ms in alerts)
    assert delays_ms[len(delays_ms) // 2] < 1000
    both = (first, second)
    wait_until(lambda: sum(one.status().fixes_evaluated for one in both) == sum(len(one.records) for one in drives), 5)
    wait_until(lambda: sum(one.status().alerts_published for one in both) == len(alerts), 5)
    wait_until(lambda: [one.status().lag_s for one in (first, second)] == [0, 0], 5)


def test_a_killed_process_is_replaced_within_five_seconds_and_nothing_is_missed_or_invented(
    region: AlertRegion, processes: Callable[..., AlertProcess]
) -> None:
    first, second = processes("kill-1"), processes("kill-2")
    wait_until(lambda: held(first, second) == [1, 1], 60)
    drives = [Drive(f"kill-{number}", ROUNDS) for number in range(10)]
    killed_s, replaced_s = 0.0, 0.0
    with region.sender() as sender:
        for number in range(ROUNDS):
            sender.send_round(drives, number)
            if number == ROUNDS // 2:
                first.process.kill()
                killed_s = time.monotonic()
            if killed_s and not replaced_s and held(second) == [2]:
                replaced_s = time.monotonic()
    if not replaced_s:
        wait_until(lambda: held(second) == [2], 10)
        replaced_s = time.monotonic()
    assert replaced_s - killed_s < 5
    wait_until(lambda: region.ids(drives) >= truth(drives), 20)
    assert region.ids(drives) == truth(drives)
    # One that comes gets its share, and a third one is a standby that does not say that it is healthy.
    again = processes("kill-3")
    wait_until(lambda: held(second, again) == [1, 1], 30)
    third = processes("kill-4")
    wait_until(lambda: _standby(third) and third.status().processes == 3, 30)
    assert third.status().healthy is None
    assert httpx.get(f"http://127.0.0.1:{third.endpoint.port}/health").status_code == 503
    assert held(second, again) == [1, 1]


@pytest.mark.nightly
def test_a_standby_goes_on_with_the_partition_of_a_killed_process_without_reading_all_again(
    region: AlertRegion, processes: Callable[..., AlertProcess]
) -> None:
    first, second = processes("ready-1"), processes("ready-2")
    wait_until(lambda: held(first, second) == [1, 1], 60)
    (lost,) = first.status().partitions_held
    drives = [Drive(f"ready-{number}", ROUNDS) for number in range(20)]
    with region.sender() as sender:
        for number in range(ROUNDS - 2):
            sender.send_round(drives, number)
        sent_s = time.monotonic()
        wait_until(lambda: second.status().partitions_ready == (lost,), 30)
        metrics = httpx.get(f"http://127.0.0.1:{second.endpoint.port}/metrics").text
        assert "waybill_alerts_standby_partitions 1.0" in metrics
        assert "waybill_alerts_ready_partitions 1.0" in metrics
        # what the owner acknowledged is taken after a turn of each
        wait_until(lambda: time.monotonic() > sent_s + 6, 10)
        before = len(_logged(second, "partition taken"))
        first.process.kill()
        killed_s = time.monotonic()
        for number in range(ROUNDS - 2, ROUNDS):
            sender.send_round(drives, number)
    wait_until(lambda: held(second) == [2], 10)
    assert time.monotonic() - killed_s < 5 * PATIENCE
    wait_until(lambda: region.ids(drives) >= truth(drives), 20)
    assert region.ids(drives) == truth(drives)
    taken = _logged(second, "partition taken")[before:]
    assert {(line["partition"], line["standby"]) for line in taken} == {(lost, True)}
    assert sum(line["messages"] for line in taken) < 20, f"of hundreds: {taken}"


def _logged(process: AlertProcess, event: str) -> list[dict[str, Any]]:
    lines = process.process.log.read_text(encoding="utf-8").splitlines()
    said = [json.loads(line) for line in lines if line.startswith("{")]
    return [line for line in said if line["event"] == event]


def _standby(process: AlertProcess) -> bool:
    try:
        return process.status().state == "standby" and len(process.status().partitions_of_others) == 2
    except NoAnswer:
        return False
