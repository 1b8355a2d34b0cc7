"""The access daemon's loop: what one change does wrong is done to no other, and no clock puts anything off."""

from dataclasses import dataclass, field
from typing import Any
from unittest.mock import create_autospec

import pytest

from gateway.access.broker import StepRunner
from gateway.access.core import AccessCore, BrokerStep
from gateway.access.issued import IssuedReader
from gateway.access.loop import CLOCK_BACK_S, AccessLoop, ListIntake
from gateway.access.status import AccessMetrics
from gateway.errors import BrokerUnreachable, GatewayError
from tests.identity.makers import MOMENT, active, change, published
from waybill.identity.registry import revoke
from waybill.identity.registry_messages import DevicePublication
from waybill.pulsar.compacted_topic import TopicStanding

READ = TopicStanding(is_current=True, was_current=True)


class FragileCore(AccessCore):
    """Raises for these devices."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses: set[str] = set()

    def on_device(self, publication: DevicePublication) -> None:
        if publication.entry.name in self.refuses:
            raise ValueError("an entry like no other")
        super().on_device(publication)


@dataclass
class Region:
    """A loop without a broker: `steps` are those that were done."""

    core: FragileCore = field(default_factory=FragileCore)
    metrics: AccessMetrics = field(default_factory=AccessMetrics)
    steps: list[BrokerStep] = field(default_factory=list)
    looked: list[str] = field(default_factory=list)
    issued: Any = None
    ticks: int = 0
    wall_s: float = MOMENT.timestamp() + 10
    steady_s: float = 0.0
    is_broker_down: bool = False
    is_clock_right: bool = True
    enrolment: Any = None

    def __post_init__(self) -> None:
        runner = create_autospec(StepRunner, is_other_broker=False)
        runner.run.side_effect = self._run
        runner.end_returned_sessions.side_effect = self.looked.extend
        self.issued = issued = create_autospec(IssuedReader)
        issued.read_new.return_value, issued.read_waiting.return_value, issued.is_behind = [], [], False
        lists = create_autospec(ListIntake)
        times: Any = {"clock": lambda: self.wall_s, "monotonic": lambda: self.steady_s}
        times |= {"may_begin": lambda: self.is_clock_right}
        self.loop = AccessLoop(
            self.core, runner, lists, issued, self.metrics, on_tick=self._tick, enrolment=self.enrolment, **times
        )
        self.loop.put(READ)
        self.wait(0)
        self.wait(1)
        self.steps.clear()

    def wait(self, seconds: float) -> None:
        self.wall_s += seconds
        self.steady_s += seconds
        # Something comes always, so that no turn waits.
        self.loop.put(TopicStanding())
        self.loop.turn()

    def revoke(self, *devices: str) -> None:
        for device in devices:
            self.loop.put(published(revoke(active("acme", device), change())))

    @property
    def ended(self) -> list[str]:
        return sorted(name for step in self.steps for name in step.end)

    def _run(self, step: BrokerStep) -> None:
        if self.is_broker_down:
            raise BrokerUnreachable("no broker runs")
        self.steps.append(step)

    def _tick(self) -> None:
        self.ticks += 1


def test_an_entry_that_fails_keeps_no_other_from_being_applied_and_is_named() -> None:
    region = Region()
    region.core.refuses = {"acme/odd", "acme/odder"}
    region.revoke("odd", "bus-1", "odder", "bus-2")
    region.wait(0)
    region.wait(1)
    assert region.ended == ["acme/bus-1", "acme/bus-2"]
    assert region.loop.not_applied.startswith("acme/odder is not applied before a restart: ValueError: an entry like")
    assert region.metrics.counts["changes_failed"] == 2


@pytest.mark.parametrize("back_s", [2.0, 600.0, CLOCK_BACK_S - 10])
def test_a_clock_that_is_set_back_puts_off_no_revocation_no_retry_no_look_and_no_tick(back_s: float) -> None:
    region = Region()
    region.revoke("bus-1")
    region.wait(0)
    region.wall_s -= back_s
    region.wait(0.02)
    assert region.ended == ["acme/bus-1"]
    region.wall_s -= 5
    region.wait(1)
    assert region.looked == ["acme/bus-1"]
    region.is_broker_down = True
    region.revoke("bus-2")
    region.wait(0)
    region.wait(1)
    assert region.loop.problem == "no broker runs"
    region.is_broker_down = False
    region.wall_s -= 4
    ticks = region.ticks
    region.wait(1)
    assert region.ticks == ticks + 1
    assert region.ended == ["acme/bus-1", "acme/bus-2"]
    assert region.loop.problem == ""


@pytest.mark.parametrize("jump_s", [-3000.0, 86_400.0])
def test_who_is_revoked_while_the_broker_is_away_is_out_soon_after_it_comes_whatever_the_clock_does(
    jump_s: float,
) -> None:
    region = Region()
    region.is_broker_down = True
    region.revoke("bus-1")
    region.wait(0)
    region.wait(0.1)
    region.wall_s += jump_s
    region.is_broker_down = False
    region.revoke("bus-2")
    region.wait(0.6)
    assert region.ended == ["acme/bus-1", "acme/bus-2"]
    assert region.loop.problem == ""


def test_a_clock_that_is_set_back_by_more_than_an_hour_ends_the_daemon_within_a_second() -> None:
    region = Region()
    region.wall_s -= CLOCK_BACK_S + 1
    with pytest.raises(GatewayError):
        region.wait(1)


def test_a_daemon_that_starts_while_its_clock_is_wrong_leaves_the_broker_as_it_is_until_it_is_right() -> None:
    region = Region(is_clock_right=False)
    assert not region.core.is_ready
    region.loop.put(published(revoke(active(), change())))
    region.wait(5)
    assert region.steps == []
    region.is_clock_right = True
    region.wait(1)
    region.wait(1)
    assert [*region.steps[-1].denied] == ["acme/bus-1"]
    region.is_clock_right = False
    region.loop.put(published(revoke(active("zeta"), change())))
    region.wait(1)
    region.wait(1)
    assert region.steps[-1].denied == {"acme/bus-1", "zeta/bus-1"}, "what runs goes on to lock out"
