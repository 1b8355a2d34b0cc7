"""What a region finds as fixes come is what the engine finds in all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.alerts.config import EvaluationSettings
from gateway.alerts.evaluation import AlertRules, LiveEvents
from gateway.alerts.fixes import FixSource
from geo.spatial import DayEvent
from tests.gateway.alerts.fixes_as_they_come import (
    NOON,
    NOW,
    LiveFix,
    columns,
    cut,
    drives,
    engine_finds,
    live_rules,
)


def evaluation(by: AlertRules | None = None, **settings: float) -> LiveEvents:
    return LiveEvents(by or live_rules(), EvaluationSettings.model_validate({"max_age_s": 86_400, **settings}))


@pytest.mark.parametrize("min_stay_s", [0.0, 15.0])
@given(fixes=drives(), sizes=st.lists(st.integers(1, 9), max_size=30))
@settings(deadline=None)
def test_in_order_everything_that_the_engine_finds_is_found_whatever_comes_together(
    min_stay_s: float, fixes: list[LiveFix], sizes: list[int]
) -> None:
    by = live_rules(min_stay_s=min_stay_s)
    live = evaluation(by)
    found: dict[str, DayEvent] = {}
    for part in cut(fixes, sizes):
        for one in live.take(columns(part), NOW, report=True):
            assert one.id not in found, "an event is said once"
            found[one.id] = one.event
    expected = engine_finds(fixes, by)
    assert not live.passed_over.cut
    # what the next fix showed to be otherwise is withdrawn by the centre
    assert expected.keys() <= found.keys()
    right = {one: event for one, event in expected.items() if event.kind != "speeding"}
    assert {one: found[one] for one in right} == right


@given(fixes=drives(), random=st.randoms(use_true_random=False), sizes=st.lists(st.integers(1, 9), max_size=30))
@settings(deadline=None)
def test_in_any_order_and_repeated_each_event_is_said_once_and_what_is_kept_is_bounded(
    fixes: list[LiveFix], random: Random, sizes: list[int]
) -> None:
    live, said = evaluation(), set[str]()
    shuffled = fixes + random.sample(fixes, k=len(fixes) // 3)
    random.shuffle(shuffled)
    for part in cut(shuffled, sizes):
        found = [one.id for one in live.take(columns(part), NOW, report=True)]
        assert len(set(found)) == len(found)
        said.update(found)
    for one in live.take(columns(fixes), NOW, report=True):
        assert one.id not in said
    assert live.device_count <= 1


@given(fixes=drives(most=80), first=st.integers(1, 40))
@settings(deadline=None)
def test_a_state_that_is_made_again_of_the_fixes_before_finds_what_the_other_finds(
    fixes: list[LiveFix], first: int
) -> None:
    by = live_rules()
    lasting, again = evaluation(by), evaluation(by)
    lasting.take(columns(fixes[:first]), NOW, report=True)
    assert again.take(columns(fixes[:first]), NOW, report=False) == []
    if fixes[first:]:
        rest = columns(fixes[first:])
        assert again.take(rest, NOW, report=True) == lasting.take(rest, NOW, report=True)


def along(seconds: Sequence[int], *, east: float, step: float = 0.0001) -> list[LiveFix]:
    """A way to the east through the depot, a fix for each of these seconds."""
    return [LiveFix("bus-1", NOON + 1000 * s, s + 1, 0.0025, east + step * s) for s in seconds]


def test_a_backlog_of_yesterday_raises_nothing_and_the_state_goes_on() -> None:
    live = evaluation(max_age_s=300)
    drive = along(range(80), east=-0.002)
    assert live.take(columns(drive[:50]), NOON + 86_400_000, report=True) == []
    assert live.passed_over.too_old == 2  # into the depot, and over the gate
    found = live.take(columns(drive[50:]), NOON + 81_000, report=True)
    assert [(one.event.kind, one.event.place, round(one.event.value)) for one in found] == [
        ("enter", "beside", 0),
        ("exit", "depot", 40),
    ]


def test_the_devices_heard_least_recently_are_forgotten() -> None:
    live = evaluation(max_devices=50)
    for number in range(120):
        live.take(columns([LiveFix(f"bus-{number}", NOON, 1, 0.002, 0.002)]), NOON + number, report=True)
    assert live.device_count <= 50
    assert live.passed_over.forgotten >= 70


def test_a_device_at_a_border_for_hours_is_cut_and_counted() -> None:
    live = evaluation()
    # 3 m inside: nobody knows whether it is
    at_border = [LiveFix("bus-1", NOON + 1000 * s, s + 1, 0.002, 0.00003 if s else -0.0005) for s in range(300)]
    for at in range(0, 300, 5):
        live.take(columns(at_border[at : at + 5]), NOW, report=True)
    assert live.passed_over.cut > 0
    assert live.nbytes < 100_000


def test_an_alert_that_is_seen_by_fixes_of_two_buffers_says_so_of_each() -> None:
    live = evaluation()
    drive = along(range(30), east=-0.002)
    live.take(columns(drive[:18]), NOON + 18_000, report=True)
    both = columns([*drive[18:22], *(fix._replace(seq=fix.seq - 22) for fix in drive[22:26])])
    of_two = replace(
        both,
        sources=[*both.sources, FixSource("acme", "bus-1", 8)],
        source=np.array([0] * 4 + [1] * 4, dtype=np.int64),
    )
    (enter,) = live.take(of_two, NOON + 26_000, report=True)
    assert sorted(enter.seen_until) == [(7, 22), (8, 4)]
