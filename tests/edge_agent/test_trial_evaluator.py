"""When a trial of pushed settings is confirmed, and when it ends."""

from __future__ import annotations

from typing import Any

from edge_agent.agent import held_classes, newly_held
from edge_agent.config import AgentSettings
from edge_agent.daemon import MAX_RETRY_S, RetryTimes, TrialEvaluator
from edge_agent.drain.link_budget import DataUsage
from tests.edge_agent.makers import MINIMAL_FILE
from waybill.settings import parse


def settings_with(*classes: str, link: str = "") -> AgentSettings:
    text = (
        MINIMAL_FILE
        + (f'[link]\nlink = "{link}"\n' if link else "")
        + "".join(f"[[classes]]\n{one}\n" for one in classes)
    )
    return parse(AgentSettings, text, "x")


FREE, HELD = 'name = "other"\ntopics = ["#"]', 'name = "other"\ntopics = ["#"]\nlinks = ["satellite"]'
URGENT = 'name = "urgent"\ntopics = ["vehicle/event"]\nurgent = true'


def test_what_flowed_and_would_be_held_back_is_named_by_topic() -> None:
    before = settings_with(URGENT, FREE)
    assert newly_held(before, before, DataUsage()) == []
    assert newly_held(before, settings_with(URGENT, HELD), DataUsage()) == ["vehicle/#"]
    assert newly_held(before, settings_with(URGENT, HELD, link="satellite"), DataUsage()) == []
    held = settings_with('name = "urgent"\ntopics = ["a"]\nurgent = true', HELD)
    assert newly_held(held, held, DataUsage()) == [], "it did not flow before"
    assert newly_held(before, held, DataUsage()) == ["vehicle/event", "vehicle/#"], (
        "a topic moved into a class that waits"
    )
    assert held_classes(held, DataUsage()) == {"other": "link"}


def test_a_plan_that_is_spent_already_holds_back_too() -> None:
    before = parse(AgentSettings, MINIMAL_FILE, "x")
    after = parse(AgentSettings, MINIMAL_FILE + "[link]\nbytes_per_day = 1000000\n", "x")
    spent = DataUsage().add(0.0, 950_000)
    assert newly_held(before, after, spent) == [
        "vehicle/position",
        "vehicle/+/position",
        "vehicle/canary",
        "vehicle/signal",
        "vehicle/+/signal",
        "vehicle/#",
    ]
    assert held_classes(after, spent) == {"position": "plan", "signal": "plan", "other": "plan"}


def test_a_trial_that_holds_back_what_flowed_ends_at_once() -> None:
    judge = TrialEvaluator(0.0, 60.0)
    state: dict[str, Any] = {"is_connected": True, "is_acked": True, "is_well": True, "batches": 5}
    assert judge.evaluate(1.0, **state) == "running"
    assert judge.evaluate(20.0, holds_back=True, **state) == "holds back", "though it was good for long enough"


def judged(looks: list[tuple[float, bool, bool, bool, int]]) -> str:
    judge, verdict = TrialEvaluator(0.0, 60.0), "running"
    for now_s, connected, acked, well, batches in looks:
        verdict = judge.evaluate(now_s, is_connected=connected, is_acked=acked, is_well=well, batches=batches)
    return verdict


def test_a_connection_without_an_acknowledgement_never_confirms() -> None:
    assert judged([(now_s, True, False, True, 5) for now_s in range(60)]) == "running"
    assert judged([(60.0, True, False, True, 5)]) == "failed"
    assert judged([(60.0, False, False, False, 0)]) == "failed"


def test_an_acknowledgement_and_a_quarter_of_the_time_without_an_error_confirm() -> None:
    assert judged([(10.0, True, True, True, 5), (24.0, True, True, True, 5)]) == "running"
    assert judged([(10.0, True, True, True, 5), (25.0, True, True, True, 5)]) == "confirmed"
    assert judged([(10.0, True, True, True, 5), (20.0, True, True, False, 5), (26.0, True, True, True, 5)]) == "running"


def test_a_trial_with_nothing_to_send_says_nothing() -> None:
    assert judged([(30.0, True, False, True, 0), (60.0, True, False, True, 0)]) == "nothing to send"


def test_tries_are_further_and_further_apart() -> None:
    times = RetryTimes(600)
    due = []
    for _ in range(10):
        times.schedule_next(0.0)
        due.append(times.due_s)
    assert due[:3] == [600, 1200, 2400]
    assert due[-1] == MAX_RETRY_S
