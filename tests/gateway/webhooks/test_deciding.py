"""Quiet hours and limits are functions of the rule, of what passed, and of the time."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.webhooks.deciding import HOUR_MS, PassDecision, RuleHistory, decide
from geo.alerts import AlertRule

NIGHT = {
    "timezone": "Europe/Berlin",
    "windows": [
        {"days": ["mon", "tue", "wed", "thu", "fri", "sat", "sun"], "from": "22:00", "until": "06:00"},
    ],
}


def rule(**more: Any) -> AlertRule:
    plain = {"id": "acme/yard", "effective_from": "2026-01-01T00:00:00Z", "webhook": "ops"}
    return AlertRule.model_validate(plain | more)


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def decided(one: AlertRule, times: list[int]) -> list[PassDecision]:
    history, found = RuleHistory(), list[PassDecision]()
    for number, now_ms in enumerate(times):
        found.append(decide(one, history, str(number), now_ms))
        if found[-1] is PassDecision.SEND:
            history.note(str(number), now_ms)
    return found


TIMES = st.lists(st.integers(0, 3 * HOUR_MS), max_size=60).map(lambda gaps: [sum(gaps[:n]) for n in range(len(gaps))])


@given(st.integers(1, 10), TIMES)
def test_in_no_hour_more_pass_than_the_limit_and_none_is_held_back_with_room(most: int, times: list[int]) -> None:
    found = decided(rule(max_per_hour=most), times)
    sent: list[int] = []
    for now_ms, decision in zip(times, found, strict=True):
        within = sum(now_ms - HOUR_MS < at_ms for at_ms in sent)
        assert decision is (PassDecision.SEND if within < most else PassDecision.LIMIT)
        if decision is PassDecision.SEND:
            sent.append(now_ms)


@given(st.integers(1, 5), TIMES, st.integers(0, 50))
def test_one_that_passed_passes_again_and_is_not_counted_twice(most: int, times: list[int], again: int) -> None:
    one, history = rule(max_per_hour=most, quiet=NIGHT), RuleHistory()
    for number, now_ms in enumerate(times):
        key = str(min(number, again))
        before, known = history.count(now_ms), key in history
        decision = decide(one, history, key, now_ms)
        if known:
            assert decision is PassDecision.SEND
        elif decision is PassDecision.SEND:
            history.note(key, now_ms)
            assert history.count(now_ms) == before + 1 <= most


@given(TIMES, st.permutations(range(20)))
def test_a_history_is_the_same_from_whatever_order_it_is_read(times: list[int], order: list[int]) -> None:
    passed = [(str(number), at_ms) for number, at_ms in enumerate(times[:20])]
    mixed = [passed[number] for number in order if number < len(passed)]
    now_ms = max(times, default=0)
    assert RuleHistory(mixed).count(now_ms) == RuleHistory(passed).count(now_ms)


def test_nothing_passes_while_it_is_quiet_by_the_local_clock() -> None:
    one = rule(quiet=NIGHT)
    times = ["2026-12-01T21:59:59+01:00", "2026-12-01T22:00:00+01:00", "2026-12-02T05:59:59+01:00"]
    assert decided(one, [ms(text) for text in times]) == [PassDecision.SEND, PassDecision.QUIET, PassDecision.QUIET]
    assert decided(one, [ms("2026-12-02T06:00:00+01:00")]) == [PassDecision.SEND]
    # in summer an hour earlier by UTC, and the night of a change is an hour shorter or longer
    assert decided(one, [ms("2026-07-01T20:30:00Z")]) == [PassDecision.QUIET]
    assert decided(one, [ms("2026-12-01T20:30:00Z")]) == [PassDecision.SEND]
    for night, hours in (("2026-03-28", 7), ("2026-10-24", 9)):
        start = ms(f"{night}T12:00:00Z")
        quiet = sum(one.is_quiet_at(start + minute * 60_000) for minute in range(24 * 60))
        assert quiet == hours * 60


def test_a_clock_that_was_ahead_and_is_set_back_fills_no_hour_for_longer() -> None:
    one, history = rule(max_per_hour=1), RuleHistory()
    history.note("a", 365 * 24 * HOUR_MS)
    assert decide(one, history, "b", 1000) is PassDecision.LIMIT
    assert decide(one, history, "b", 1000 + HOUR_MS) is PassDecision.SEND
