"""Alert processes on a real Pulsar: what happens is said within the region, once or more, and nothing else is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from gateway.errors import NoAnswer
from tests.system.alert_region import AlertProcess, AlertRegion, Drive
from tests.system.own_pulsar import own_pulsar
from tests.waiting import wait_until

pytestmark = [pytest.mark.system, pytest.mark.own_servers]

ROUNDS = 20


@pytest.fixture(scope="module")
def region(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AlertRegion]:
    """A Pulsar of our own: what is in its topics is known."""
    folder = tmp_path_factory.mktemp("alerts")
    namespaces = ("fleet/telemetry-eu", "fleet/alerts-eu", "fleet/reference")
    with own_pulsar("eu", folder, *namespaces, partitioned="fleet/telemetry-eu/batches") as pulsar:
        region = AlertRegion(pulsar, folder)
        region.publish_fences()
        yield region


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
