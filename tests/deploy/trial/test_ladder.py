"""The ladder of a trial: each rung in its order, and the way out of each failure."""

from __future__ import annotations

import pytest

from deploy.trial.ladder import (
    AgentSeen,
    AlertRaised,
    Component,
    ComponentSeen,
    FenceEntered,
    LadderState,
    LineDrafted,
    MessageHeard,
    Observation,
    RecordsStored,
    Rung,
    RungView,
    rungs,
    step,
)

LINE = "mosquitto_pub -t vehicle/position"
START = LadderState(line=LINE, token_command="waybill try", bill_command="waybill reconcile --lake lake")
HEARD = MessageHeard(topic="vehicle/position", kinds=("position", "position"), lag_s=0.2)
WHOLE: tuple[Observation, ...] = (
    HEARD,
    AgentSeen(head=2, acknowledged=0, uplink="unknown"),
    AgentSeen(head=2, acknowledged=2, uplink="acknowledges"),
    RecordsStored(2, 2),
    FenceEntered("try-1", 1),
    AlertRaised("enter", 0.04),
    LineDrafted(("entry: 1 each = 2.50 EUR", "active day: 1 day"), "3.90 EUR", agrees=True, period="2026-11"),
)


def after(*seen: Observation, state: LadderState = START, now_s: float = 1.0) -> dict[Rung, RungView]:
    for one in seen:
        state = step(state, one, 1.0)
    return {one.rung: one for one in rungs(state, now_s)}


def test_a_good_message_climbs_every_rung_in_whatever_order_it_is_observed() -> None:
    found = after(HEARD, *reversed(WHOLE[3:]), *WHOLE[1:3])
    assert [*found] == [*Rung]
    assert all(one.after_s is not None and not one.why for one in found.values())
    assert found[Rung.STORED].text == "as seq 2 in the agent's buffer"
    headline, *lines = found[Rung.DRAFT].text.splitlines()
    assert headline == "net 3.90 EUR for 2026-11 so far, provisional, computed twice, equal"
    assert lines == ["entry: 1 each = 2.50 EUR", "active day: 1 day"]


def test_a_rung_whose_turn_has_not_come_says_nothing() -> None:
    found = after(HEARD, now_s=1000.0)
    assert not found[Rung.DRAFT].why
    assert found[Rung.STORED].is_stuck


def test_a_topic_that_the_agent_does_not_read_is_named_with_the_right_one() -> None:
    wrong = MessageHeard(topic="vehicel/position", is_read=False, near="vehicle/position")
    found = after(wrong)[Rung.HEARD]
    assert found.is_stuck
    assert "wrong topic: vehicel/position was heard" in found.why
    assert "did you mean vehicle/position?" in found.why
    assert found.command == LINE


@pytest.mark.parametrize(
    ("malformed", "words"),
    [("no-json", "bad JSON"), ("misspelt-topic", "wrong topic"), ("time-in-seconds", "the agent needs milliseconds")],
)
def test_an_unreadable_message_is_heard_and_not_mapped(malformed: str, words: str) -> None:
    found = after(MessageHeard(topic="vehicle/position", malformed=malformed, sample='{"a\x1b'))
    assert found[Rung.HEARD].after_s is not None
    assert found[Rung.MAPPED].is_stuck
    assert words in found[Rung.MAPPED].why
    assert "\x1b" not in found[Rung.MAPPED].why
    assert found[Rung.MAPPED].command == LINE


def test_a_good_message_after_a_bad_one_begins_the_ladder_again() -> None:
    state = step(START, MessageHeard(topic="vehicle/position", malformed="no-json"), 1.0)
    state = step(state, HEARD, 5.0)
    found = {one.rung: one for one in rungs(state, 5.0)}
    assert found[Rung.MAPPED].text == "2 positions"
    assert found[Rung.HEARD].after_s == found[Rung.MAPPED].after_s == 0.0


def test_a_clock_a_day_behind_is_said_where_it_matters() -> None:
    late = MessageHeard(topic="vehicle/position", kinds=("position",), lag_s=86_400.0)
    found = after(late, AgentSeen(head=1, acknowledged=1), ComponentSeen(Component.ALERTS, is_ready=True))
    assert "1.0 days behind" in found[Rung.MAPPED].why
    assert "timedatectl" in found[Rung.MAPPED].command
    assert "no alert is raised" in found[Rung.ALERT].why


def test_the_age_of_a_replayed_track_is_no_fault_of_a_clock() -> None:
    track = LadderState(line=LINE, is_track=True)
    late = MessageHeard(topic="vehicle/position", kinds=("position",), lag_s=86_400.0)
    assert not after(late, state=track)[Rung.MAPPED].why


def test_a_token_that_was_used_names_the_way_out() -> None:
    problem = "the broker refuses a claim that is used, expired or unknown"
    seen = AgentSeen(head=2, acknowledged=0, certificate_problem=problem)
    found = after(HEARD, seen, ComponentSeen(Component.STACK, is_ready=True))[Rung.ACKNOWLEDGED]
    assert found.is_stuck
    assert problem in found.why
    assert found.command == "waybill try"


def test_a_component_that_is_not_ready_says_why_and_its_command() -> None:
    starting = ComponentSeen(Component.GATEWAY, is_ready=False)
    assert after(*WHOLE[:2], starting)[Rung.ACKNOWLEDGED].why == "fleet-gateway is starting"
    assert not after(*WHOLE[:2], starting)[Rung.ACKNOWLEDGED].is_stuck
    broken = ComponentSeen(Component.GATEWAY, is_ready=False, why="no Pulsar", command="fleet-gateway status")
    found = after(*WHOLE[:2], starting, broken)[Rung.ACKNOWLEDGED]
    assert (found.why, found.command, found.is_stuck) == ("fleet-gateway: no Pulsar", "fleet-gateway status", True)


def test_a_draft_that_is_another_one_when_computed_again_is_no_draft_until_it_is_equal() -> None:
    state = START
    for one in (*WHOLE, LineDrafted(("distance: 1 km",), "0.45 EUR", agrees=False, doubt="distance: 1 km: 10:00")):
        state = step(state, one, 1.0)
    assert (state.is_unequal, state.is_complete) == (True, False)
    found = {one.rung: one for one in rungs(state, 1.0)}[Rung.DRAFT]
    assert (found.after_s, found.is_stuck) == (None, True)
    assert found.why == "draft: computed twice, NOT EQUAL: distance: 1 km: 10:00"
    assert found.command == "waybill reconcile --lake lake"
    state = step(state, WHOLE[-1], 9.0)
    assert (state.is_unequal, state.is_complete, state.complete_s) == (False, True, 9.0)


def test_a_device_that_stays_inside_is_told_to_drive() -> None:
    found = after(*WHOLE[:4], now_s=100.0)
    assert "drive 400 m away and back" in found[Rung.FENCE].why
    assert found[Rung.ALERT].command == LINE
    track = after(*WHOLE[:4], state=LadderState(line=LINE, is_track=True), now_s=100.0)
    assert "does not come from outside" in track[Rung.FENCE].why
