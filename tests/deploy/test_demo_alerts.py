"""The demo's check that each alert has its verdict: it holds of a right lake, and of no wrong one."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cloud_jobs.billing.contracts import CANARY
from deploy.demo.watching import AlertFindings, find_verdicts, judge_alerts
from geo.alerts import Alert
from tests.cloud_jobs.billing.register.billed_lake import BilledLake
from tests.system.lake_of_fixes import derive

MOMENT = datetime(2026, 1, 10, 6, tzinfo=UTC)
T_MS = round(MOMENT.timestamp() * 1000)


def alert(name: str) -> tuple[Alert, int]:
    """An alert, raised 20 ms after its batch and read 70 ms after it."""
    made = Alert(
        id=name.rjust(24, "0"), tenant="fleet", device="bus-1", region="eu", epoch=1, seq=1, kind="enter",
        place="yard", t_ms=T_MS, received_ms=T_MS, raised_ms=T_MS + 20,
    )  # fmt: skip
    return made, T_MS + 70


def alerts(names: str) -> dict[str, tuple[Alert, int]]:
    return {one[0].id: one for one in map(alert, names)}


def event(name: str, revision: int = 0, *, retracted: bool = False, tenant: str = "fleet") -> dict[str, Any]:
    return _row(name, revision, tenant) | {
        "epoch": 1, "seq": 1, "kind": "enter", "place": "yard", "time": MOMENT, "value": 0.0, "retracted": retracted,
    }  # fmt: skip


def verdict(name: str, said: str, revision: int = 0, *, tenant: str = "fleet") -> dict[str, Any]:
    return _row(name, revision, tenant) | {"verdict": said, "corrective_ids": []}


def _row(name: str, revision: int, tenant: str) -> dict[str, Any]:
    who = {"tenant": tenant, "device": "bus-1", "day": MOMENT.date(), "emitted_at": MOMENT}
    return {"id": name.rjust(24, "0"), "revision": revision} | who


ALERTS = "ab"
EVENTS = [event("a"), event("b"), event("b", 1, retracted=True), event("c")]
VERDICTS = [verdict("a", "withdrawn"), verdict("a", "confirmed", 1), verdict("b", "withdrawn"), verdict("c", "late")]
"""Of `a` and `b` an alert was raised, and `b` did not happen after all; of `c` nobody said anything."""
OF_CANARIES = [verdict("e", "confirmed", tenant=CANARY), verdict("f", "withdrawn", tenant=CANARY)]


def found_in(raised: str = ALERTS, verdicts: list[dict[str, Any]] = VERDICTS, events: Any = EVENTS) -> AlertFindings:
    return judge_alerts(alerts(raised), events, verdicts)


def test_a_right_lake_holds_and_what_became_of_the_alerts_is_counted() -> None:
    found = found_in()
    assert found.holds
    assert found.verdicts == {"confirmed": 1, "corrected": 0, "withdrawn": 1, "late": 1}
    assert (found.by_kind, found.region_ms, found.centre_ms) == ({"enter": 2}, (20, 20), (70, 70))
    assert found.found == "2 alerts; 1 confirmed, 1 withdrawn, 1 late"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        pytest.param({"verdicts": VERDICTS[:2] + VERDICTS[3:]}, "1 without one", id="missing"),
        pytest.param({"raised": "abc"}, "1 without one", id="late, of what was said"),
        pytest.param({"verdicts": [*VERDICTS, verdict("a", "withdrawn", 1)]}, "1 there twice", id="two"),
        pytest.param({"verdicts": [*VERDICTS, verdict("d", "withdrawn")]}, "1 on no alert", id="withdrawn, unknown"),
        pytest.param({"raised": "a"}, "1 on no alert", id="an alert that nobody read"),
        pytest.param({"verdicts": [*VERDICTS, verdict("d", "late")]}, "are not of the events", id="of no event"),
        pytest.param({"events": [*EVENTS, event("d")]}, "are not of the events", id="an event without one"),
        pytest.param({"events": [*EVENTS, event("b", 2)]}, "are not of the events", id="withdrawn, and happened"),
        pytest.param({"raised": ""}, "0 alerts", id="no alert at all"),
    ],
)
def test_a_wrong_lake_does_not_hold_and_says_why(changed: dict[str, Any], said: str) -> None:
    found = found_in(**changed)
    assert not found.holds
    assert said in found.found


def test_what_is_of_a_canary_is_none_of_the_fleet_s(tmp_path: Path) -> None:
    verdicts, events = [*VERDICTS, *OF_CANARIES], [*EVENTS, event("e", tenant=CANARY)]
    billed = BilledLake.create(tmp_path, "bus-1")
    derive(billed.lake, "geofence_events", events)
    derive(billed.lake, "verdicts", verdicts)
    found = find_verdicts(billed.lake, alerts(ALERTS))
    assert (found.holds, sum(found.verdicts.values())) == (True, 3)
