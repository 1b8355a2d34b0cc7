"""What may be called healthy, and what connections that do not last mean."""

from __future__ import annotations

from itertools import pairwise

from gateway.service import BrokerLink
from gateway.status import PublicationResults
from tests.gateway.strategies import settings


def test_a_broker_that_refuses_every_acknowledgement_is_a_problem_until_it_takes_them() -> None:
    results = PublicationResults()
    assert results.problem(0.0) == ""
    for second in range(5):
        results.add("Not authorized", float(second))
    assert "refused 5 of the last 5" in results.problem(5.0)
    assert "Not authorized" in results.problem(5.0)
    for _ in range(50):
        results.add("", 6.0)
    assert results.problem(6.0) == "", "one device that the broker bars does not make the region ill"
    assert PublicationResults().problem(6.0) == ""


def link() -> BrokerLink:
    mqtt = settings(mqtt={"host": "h", "backoff_max_s": 15, "connect_timeout_s": 5}).mqtt
    return BrokerLink("gateway-eu-1", mqtt, lambda: 1.0, 0.0)


def connect_for(
    made: BrokerLink, now_s: float, lasted_s: float, reason: str = "no reason", *, is_unexplained: bool = True
) -> float:
    """Connect as soon as it is due; when it ended."""
    while not made.is_due(now_s):
        now_s += 0.1
    made.on_attempt(now_s)
    made.on_connected(now_s)
    made.on_ended(reason, now_s + lasted_s, is_unexplained=is_unexplained)
    return now_s + lasted_s


def test_connections_that_end_soon_slow_down_and_name_the_likely_reason() -> None:
    made, now_s = link(), 0.0
    began = []
    for _ in range(6):
        now_s = connect_for(made, now_s, 0.3)
        began.append(now_s)
    gaps = [after - before for before, after in pairwise(began)]
    assert gaps == sorted(gaps)
    assert gaps[-1] > 3
    assert "'gateway-eu-1'" in made.problem
