"""The audit of a drill's alerts, and that it never says of what it does not know that it holds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from deploy.drill.cli import as_json, drill_table
from deploy.drill.drills import Outcome
from deploy.drill.environment import Drill
from deploy.drill.findings import AlertAudit, VerdictRow, audit_alerts, compute_findings
from geo.alerts import AlertVerdict, VerdictKind
from geo.spatial.event_ids import Revision
from tests.deploy.test_drill import printed
from tests.deploy.test_drill_findings import TIMELINE

ROWS = [
    VerdictRow("a", 0, "withdrawn", "not_received"),
    VerdictRow("a", 1, "confirmed", None),
    VerdictRow("b", 0, "withdrawn", "did_not_occur"),
    VerdictRow("c", 0, "late", None),
]
EVENTS = [Revision("a", 0, "a"), Revision("b", 0, "b"), Revision("b", 1, "b", retracted=True), Revision("c", 0, "c")]


def message(row: VerdictRow, **changes: Any) -> AlertVerdict:
    facts: dict[str, Any] = {"id": row.id.rjust(24, "0"), "revision": row.revision, "verdict": VerdictKind(row.verdict)}
    return AlertVerdict(**(facts | {"tenant": "t", "device": "d", "decided_ms": 1} | changes))


def wide(rows: list[VerdictRow]) -> list[VerdictRow]:
    return [row._replace(id=row.id.rjust(24, "0")) for row in rows]


def audited(
    announced: str = "aba", rows: list[VerdictRow] = ROWS, said: list[VerdictRow] = ROWS, events: Any = EVENTS
) -> AlertAudit:
    happened = [replace(one, id=one.id.rjust(24, "0")) for one in events]
    return audit_alerts([one.rjust(24, "0") for one in announced], happened, wide(rows), [message(row) for row in said])


def test_each_announced_id_has_one_verdict_in_force_and_they_are_counted_by_kind() -> None:
    found = audited()
    assert found.holds is True
    assert (found.announced, found.revised) == (2, 1)
    assert found.in_force == {"confirmed": 1, "corrected": 0, "withdrawn": 1, "late": 1}
    assert found.reasons == {"did_not_occur": 1}
    assert audited(said=ROWS + ROWS).holds is True, "a message that comes twice is the same verdict"


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"announced": "abd"}, "without"),
        ({"announced": "abc"}, "without"),
        ({"rows": [*ROWS, ROWS[1]]}, "twice"),
        ({"said": ROWS[:-1]}, "unpublished"),
        ({"said": [*ROWS[:-1], ROWS[-1]._replace(verdict=VerdictKind.CONFIRMED)]}, "unpublished"),
    ],
    ids=["none", "late", "twice", "unpublished", "other"],
)
def test_what_is_not_one_verdict_is_counted(changed: dict[str, Any], what: str) -> None:
    found = audited(**changed)
    assert found.holds is False
    assert getattr(found, what) > 0


def test_what_could_not_be_read_is_unknown_and_no_drill_passes_by_it() -> None:
    outcome = Outcome(Drill.FAILBACK, compute_findings(TIMELINE), 0)
    assert outcome.passed
    for alerts, passed, word in ((audited(), True, "yes"), (AlertAudit(unknown="a topic"), False, "unknown")):
        one = replace(outcome, alerts=alerts)
        assert one.passed is passed
        assert word in printed(drill_table(one)).split("alerts without exactly one verdict")[1]
        assert as_json(one)["alerts"]["each_has_one_verdict"] is alerts.holds
        assert as_json(one)["passed"] is passed
    assert as_json(outcome)["alerts"] is None
