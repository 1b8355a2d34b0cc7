"""Where to send and how much: regions, the rate, the plan, the link."""

from datetime import UTC, datetime
from random import Random

import pytest

from edge_agent.config import AgentSettings, ClassSettings, FailoverSettings, LinkSettings
from edge_agent.drain.link_budget import DataUsage, LinkBudget
from edge_agent.drain.region import Regions
from edge_agent.store.database import BufferCounters
from tests.edge_agent.makers import MINIMAL_FILE
from waybill.settings import parse

CALM = FailoverSettings(after_s=20, return_after_s=300)


class NoJitter(Random):
    def random(self) -> float:
        return 0.0


NOON = datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp()


def test_the_next_region_is_taken_after_lasting_failure_only():
    regions = Regions(3, CALM, NoJitter())
    assert not regions.on_failure(0)
    assert not regions.on_failure(19)
    regions.on_success()
    assert not regions.on_failure(25)
    assert not regions.on_failure(44)
    assert regions.on_failure(45)
    assert regions.index == 1
    regions.on_failure(46)
    assert regions.on_failure(66)
    assert regions.index == 2


def test_the_preferred_region_is_probed_in_time_and_returned_to_when_it_is_back():
    regions = Regions(2, CALM, NoJitter())
    assert not regions.should_probe(10_000)
    regions.on_failure(0)
    regions.on_failure(20)
    assert not regions.should_probe(319)
    assert regions.should_probe(320)
    assert not regions.on_probed(325, is_back=False)
    assert not regions.should_probe(624)
    assert regions.should_probe(625)
    assert regions.on_probed(660, is_back=True)
    assert regions.index == 0


def test_a_fleet_does_not_move_as_one():
    moments = set()
    for seed in range(50):
        regions = Regions(2, FailoverSettings(after_s=20), Random(seed))
        moments.add(next(second for second in range(100) if regions.on_failure(second)))
    assert len(moments) >= 8
    assert min(moments) >= 20
    assert max(moments) <= 30


def test_what_was_spent_begins_anew_with_the_day_and_the_month():
    spent = DataUsage().add(NOON, 100).add(NOON + 60, 50)
    assert (spent.day, spent.day_bytes, spent.month_bytes) == (20261121, 150, 150)
    spent = spent.add(NOON + 86_400, 7)
    assert (spent.day_bytes, spent.month_bytes) == (7, 157)
    assert spent.add(NOON + 86_400 * 10, 1) == DataUsage(20261201, 1, 202612, 1)


CLASSES = (
    ClassSettings(name="urgent", topics=("e",), urgent=True),
    ClassSettings(name="wifi", topics=("w",), links=("wifi", "ethernet")),
    ClassSettings(name="other", topics=("#",)),
)


@pytest.mark.parametrize(
    ("link", "used", "held"),
    [
        ("wifi", 0, {}),
        ("cellular", 0, {"wifi": "link"}),
        (None, 0, {"wifi": "link"}),
        ("cellular", 9_000, {"wifi": "link", "other": "plan"}),
        ("cellular", 10_000, {"urgent": "plan", "wifi": "link", "other": "plan"}),
        ("wifi", 10_000, {}),
    ],
)
def test_classes_wait_for_their_link_and_the_plans_reserve_is_for_urgent_ones(link, used, held):
    counters = BufferCounters()
    planned = LinkSettings(link=link, bytes_per_day=10_000, plan_reserve=0.1)
    settings = parse(AgentSettings, MINIMAL_FILE, "x").model_copy(update={"link": planned, "classes": CLASSES})
    it = LinkBudget(settings, counters, lambda: NOON)
    counters.add("wire_day", 20261121)
    counters.add("wire_day_bytes", used)
    assert it.held_classes() == held
    assert it.allowed_classes() & {0, 1, 2} == {at for at, one in enumerate(CLASSES) if one.name not in held}


def link_budget(counters, **link):
    settings = AgentSettings.model_validate(
        {"device": {"id": "d"}, "uplinks": [{"region": "eu", "host": "127.0.0.1"}], "link": link}
    )
    return LinkBudget(settings, counters, lambda: NOON)


def test_bytes_are_counted_as_the_kernel_saw_them_and_outlive_a_restart():
    counters = BufferCounters()
    it = link_budget(counters, bytes_per_day=100_000)
    it.on_connected()
    it.charge_estimate(0.0, 1000)
    it.charge_counted(1.0, 1500, 200)
    it.charge_counted(2.0, 1600, 300)
    it.on_connected()
    it.charge_counted(3.0, 10, 10)
    assert link_budget(counters).usage == DataUsage(20261121, 1920, 202611, 1920)


def test_the_rate_follows_what_was_really_sent():
    it = link_budget(BufferCounters(), bytes_per_s=1000, burst_bytes=2000)
    it.on_connected()
    it.charge_estimate(0.0, 1000)
    assert it.wait_s(0.0) == 0
    it.charge_counted(0.0, 5000, 0)
    assert it.wait_s(0.0) == pytest.approx(3.0, abs=0.1)
