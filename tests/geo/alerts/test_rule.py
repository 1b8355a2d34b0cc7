"""Alert rules: what they hear of, when they are quiet, and what is refused with its place."""

import json
from datetime import datetime
from typing import Any

import pytest

from geo.alerts import AlertRule, RuleMessages, UnusableRule, usable_rule
from geo.alerts.rule import KINDS
from geo.reference.messages import scope_of
from geo.spatial.weekly import DAYS

WEEKDAYS = list(DAYS[:5])
NIGHT = {"timezone": "Europe/Berlin", "windows": [{"days": WEEKDAYS, "from": "22:00", "until": "06:00"}]}


def body(**more: Any) -> str:
    plain = {"id": "acme/yard", "effective_from": "2026-12-01T00:00:00Z", "webhook": "ops"}
    return json.dumps(plain | more)


def rule(**more: Any) -> AlertRule:
    return usable_rule(body(**more)).made


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def test_a_rule_says_whose_it_is_and_from_when_it_is_in_force() -> None:
    begin, made = usable_rule(body())
    assert begin == ms("2026-12-01T00:00:00Z")
    assert (made.account, made.messages, made.enabled, made.digest) == ("acme", RuleMessages.BOTH, True, True)


def test_without_kinds_and_places_it_hears_of_all_and_with_them_of_those_alone() -> None:
    assert all(rule().matches(kind, "anywhere") for kind in KINDS)
    made = rule(kinds=["enter"], places=["yard", "depot-*"])
    heard = [place for place in ("yard", "yard-2", "depot-", "depot-7", "depo") if made.matches("enter", place)]
    assert heard == ["yard", "depot-", "depot-7"]
    assert not made.matches("exit", "yard")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"id": "acme"}, "id: "),
        ({"id": "acme/yard/2"}, "id: "),
        ({"id": "Acme/yard"}, "id: "),
        ({"effective_from": "2026-12-01T00:05:00Z"}, "not on a quarter"),
        ({"effective_from": "2026-12-01T00:00:00"}, "no offset"),
        ({"kinds": ["entry"]}, "kinds.0: "),
        ({"places": ["yard\n"]}, "places.0: "),
        ({"max_per_hour": 0}, "max_per_hour: "),
        ({"max_per_hour": True}, "max_per_hour: "),
        ({"quiet": {"timezone": "Mars/Olympus", "windows": NIGHT["windows"]}}, "quiet.timezone: "),
        ({"quiet": {"timezone": "UTC", "windows": [{"days": ["mon"], "from": "25:00", "until": "06:00"}]}}, "from: "),
        ({"webhook": "https://example.com"}, "webhook: "),
        ({"url": "https://example.com"}, "url: "),
    ],
)
def test_what_is_wrong_is_named_with_its_place(more: dict[str, Any], said: str) -> None:
    with pytest.raises(UnusableRule) as refused:
        usable_rule(body(**more))
    assert said in str(refused.value)


def test_no_text_raises_anything_else() -> None:
    for text in ("", "[]", "null", "1", '"a"', "{", "{}", "[" * 5000, '{"id": {}}'):
        with pytest.raises(UnusableRule):
            usable_rule(text)


def test_quiet_hours_follow_the_local_clock_over_both_changes_of_it() -> None:
    made = rule(
        quiet={"timezone": "Europe/Berlin", "windows": [{"days": list(DAYS), "from": "02:30", "until": "03:30"}]}
    )
    # clocks go from 02:00 to 03:00 at 01:00 UTC: the window begins where the clock first shows a time in it
    spring = {minute: made.is_quiet_at(ms("2026-03-29T00:00:00Z") + minute * 60_000) for minute in range(120)}
    assert {minute for minute, is_quiet in spring.items() if is_quiet} == set(range(60, 90))
    # and from 03:00 to 02:00 at 01:00 UTC: the half hour comes twice
    autumn = {minute: made.is_quiet_at(ms("2026-10-25T00:00:00Z") + minute * 60_000) for minute in range(180)}
    assert {minute for minute, is_quiet in autumn.items() if is_quiet} == {*range(30, 60), *range(90, 150)}


def test_a_rule_is_signed_for_its_account_by_its_id() -> None:
    assert scope_of("alert_rule", {"id": "acme/yard"}).accounts == {"acme"}
    assert not scope_of("alert_rule", {"id": "acme/yard"}).is_shared
    for odd in ({}, {"id": 5}, {"id": ["acme/yard"]}, {"id": None}):
        assert scope_of("alert_rule", odd).accounts == {""}, "for which no key speaks"
