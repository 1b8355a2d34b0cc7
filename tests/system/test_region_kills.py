"""A region with everything on is broken in mid-flight, part by part: nothing is lost, and nothing counts twice."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.system.guarded_fleet import GuardedFleet
from tests.system.guarded_region import GuardedRegion, guarded_region
from tests.waiting import wait_until

pytestmark = [pytest.mark.system, pytest.mark.own_servers]

WINDOWS = {"turn-1": 1, "turn-2": 1, "crowd-1": 24, "crowd-2": 24}
LIVES_S = (12.0, 30.0, 60.0)
"""Of a certificate that ends: time enough to connect with it, on a busy machine too."""


@pytest.fixture(scope="module")
def region(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedRegion]:
    with guarded_region(tmp_path_factory.mktemp("guarded")) as running:
        yield running


@pytest.fixture(scope="module")
def fleet(region: GuardedRegion, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedFleet]:
    made = GuardedFleet(region, tmp_path_factory.mktemp("fleet"), WINDOWS)
    yield made
    made.close()


@contextmanager
def in_flight(region: GuardedRegion, fleet: GuardedFleet) -> Iterator[None]:
    """What is done in it is done while every device sends; behind it everything is accounted for."""
    region.restore()
    fleet.go_on()
    since_s = time.monotonic()
    yield
    fleet.go_on()
    fleet.settle()
    again = fleet.check(since_s)
    print(f"{fleet.batches} batches, {len(again)} came again")  # noqa: T201 - shown with -s


@pytest.mark.nightly
def test_undisturbed_nothing_comes_twice(region: GuardedRegion, fleet: GuardedFleet) -> None:
    region.restore()
    fleet.go_on()
    wait_until(lambda: fleet.batches > 200)
    fleet.settle()
    again = fleet.check(time.monotonic())
    assert all(fleet.devices[name].sent[first] > 1 for name, first in again), "an impatient device may send again"


def test_gateways_are_killed_at_random_moments_one_by_one_and_together(
    region: GuardedRegion, fleet: GuardedFleet
) -> None:
    one, other = region.gateways
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    with in_flight(region, fleet):
        for victims in ([one], [other], [one, other]):
            fleet.go_on()
            time.sleep(chance.uniform(0, 0.05))
            for gateway in victims:
                gateway.process.kill()
            fleet.assert_safe()
            region.restore()


@pytest.mark.nightly
def test_gateways_are_upgraded_in_turn(region: GuardedRegion, fleet: GuardedFleet) -> None:
    with in_flight(region, fleet):
        for gateway in region.gateways:
            gateway.process.stop()
            assert '"event": "stopped"' in gateway.process.last_lines(1)[0]
            fleet.go_on()
            region.restore()


@pytest.mark.nightly
def test_the_broker_is_killed_twice(region: GuardedRegion, fleet: GuardedFleet) -> None:
    with in_flight(region, fleet):
        for _ in range(2):
            fleet.go_on()
            region.broker.kill()
            region.restore()
            fleet.assert_safe()


LOSSES: dict[str, Callable[[GuardedRegion], object]] = {
    "Pulsar is killed": lambda region: region.pulsar.kill(),
    "its link is cut": lambda region: region.to_pulsar.cut(),
    "its link is silent": lambda region: region.to_pulsar.cut(silent=True),
    "the devices' link is cut": lambda region: region.to_broker.cut(),
    "the devices' link is silent": lambda region: region.to_broker.cut(silent=True),
}


@pytest.mark.nightly
@pytest.mark.parametrize("loss", LOSSES)
def test_while_nothing_gets_through_nothing_is_acknowledged(
    region: GuardedRegion, fleet: GuardedFleet, loss: str
) -> None:
    """For longer than gateways wait for a receipt."""
    with in_flight(region, fleet):
        LOSSES[loss](region)
        with nothing_acknowledged(fleet):
            if "devices" in loss:
                time.sleep(2)
            else:
                region.wait_for_failures()
        region.restore()
        fleet.assert_safe()


@pytest.mark.nightly
def test_certificates_and_the_gateways_token_end_in_mid_flight_and_the_next_ones_need_no_restart(
    region: GuardedRegion, fleet: GuardedFleet
) -> None:
    with in_flight(region, fleet):
        processes = [one.process.pid for one in region.gateways]
        ends_s = connect_for_a_while(region, fleet)
        fleet.go_on()
        wait_until(lambda: time.monotonic() > ends_s + 1, LIVES_S[-1] + 30)
        connect_anew(region)
        with nothing_acknowledged(fleet):
            wait_until(lambda: not any(one.status().mqtt_connected for one in region.gateways))
            wait_until(lambda: "certificate verify failed" in region.broker.log.read_text(encoding="utf-8"))
            wait_until(lambda: "JWT expired" in region.pulsar.log.read_text(encoding="utf-8"))
        fleet.reissue(in_s=3600)
        region.restore()
        assert [one.process.pid for one in region.gateways] == processes


def connect_for_a_while(region: GuardedRegion, fleet: GuardedFleet) -> float:
    """Everybody connects with what ends soon; returns when it does, by the monotonic clock."""
    for life_s in LIVES_S:
        fleet.reissue(in_s=life_s)
        ends_s = time.monotonic() + life_s
        connect_anew(region)
        while time.monotonic() < ends_s - 1:
            if all(gateway.process.check() for gateway in region.gateways):
                return ends_s
            time.sleep(0.1)
    raise AssertionError(f"not everybody connected within {LIVES_S[-1]:g} s")


def connect_anew(region: GuardedRegion) -> None:
    """Ends every session and connection of the region; whoever had one connects again at once."""
    region.to_pulsar.cut()
    region.broker.kill()
    region.to_pulsar.heal()
    region.broker.start()
    region.broker.wait()


@contextmanager
def nothing_acknowledged(fleet: GuardedFleet) -> Iterator[None]:
    time.sleep(0.5)  # what was under way reaches the devices
    before = fleet.acknowledged
    yield
    assert fleet.acknowledged == before
