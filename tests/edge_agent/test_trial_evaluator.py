"""When a trial of pushed settings is confirmed, and when it ends."""

from __future__ import annotations

from edge_agent.agent import held_classes
from edge_agent.config import AgentSettings
from edge_agent.drain.link_budget import DataUsage
from edge_agent.push.trial import MAX_RETRY_S, RetryTimes, TrialEvaluator
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


def test_a_class_is_held_back_by_its_link_or_by_a_plan_that_is_spent() -> None:
    before = settings_with(URGENT, FREE)
    assert held_classes(before, DataUsage()) == {}
    assert held_classes(settings_with(URGENT, HELD), DataUsage()) == {"other": "link"}
    assert held_classes(settings_with(URGENT, HELD, link="satellite"), DataUsage()) == {}
    after = parse(AgentSettings, MINIMAL_FILE + "[link]\nbytes_per_day = 1000000\n", "x")
    assert held_classes(after, DataUsage().add(0.0, 950_000)) == {"position": "plan", "signal": "plan", "other": "plan"}


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
