"""A person may close what a device does not say: with a name and a reason, once, and never for time to come."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cloud_jobs.billing.certificates import BadDecision, ClosedState, Decision, decide, decisions, withdraw
from cloud_jobs.billing.certificates.decisions import decide_each
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.snapshots import take_snapshot
from cloud_jobs.lake.tables import Lake
from tests.cloud_jobs.ingest.centre import batch, new_ingest, new_lake, take_in

DEVICE = TenantDevice("acme", "d")
NOW = datetime(2026, 10, 3, 9, tzinfo=UTC)
START, END = datetime(2026, 9, 1, tzinfo=UTC), datetime(2026, 10, 1, tzinfo=UTC)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = new_lake(tmp_path)
    take_in(made, new_ingest(made), [batch(1, 2)])
    return made


def close(lake: Lake, **other: Any) -> Decision:
    usual: dict[str, Any] = {"device": DEVICE, "kind": ClosedState.SILENT, "span": (START, END)}
    usual |= {"decided_by": "A. Clerk", "reason": "the vehicle was sold", "now": NOW}
    return decide(lake, **(usual | other))


def test_decisions_are_numbered_and_stay_as_they_were_made(lake: Lake) -> None:
    one = close(lake)
    two = close(lake, kind=ClosedState.OPEN, reason="its disk is broken", now=NOW + timedelta(hours=1))
    assert (one.number, two.number) == (1, 2)
    assert decisions(lake) == [one, two]
    assert (two.decided_by, two.until, two.decided_at) == ("A. Clerk", END, NOW + timedelta(hours=1))


def test_a_decision_that_is_sent_again_is_the_same_one(lake: Lake) -> None:
    assert close(lake) == close(lake, now=NOW + timedelta(hours=1), reason="  the vehicle was sold ")
    assert len(decisions(lake)) == 1


def test_a_snapshot_has_the_decisions_that_were_made_by_then(lake: Lake) -> None:
    none = take_snapshot(lake, NOW)
    close(lake)
    one = take_snapshot(lake, NOW)
    close(lake, reason="another one")
    assert [len(decisions(lake, at)) for at in (none, one, None)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        ({"decided_by": " "}, "the name of who decides"),
        ({"decided_by": "x" * 201}, "at most 200 characters"),
        ({"reason": "ok"}, "a reason, 3 to 2000 characters"),
        ({"reason": "sold\nto whom"}, "one line of text"),
        ({"span": (START, NOW + timedelta(seconds=1))}, "2026-10-03T09:00:01Z has not come yet"),
        ({"span": (START, datetime(2026, 10, 1))}, "has no offset from UTC"),
        ({"span": (END, START)}, "nothing was recorded"),
        ({"device": TenantDevice("acme", "")}, "no tenant or no device"),
    ],
)
def test_a_decision_that_nobody_could_answer_for_is_refused(lake: Lake, wrong: dict[str, Any], fault: str) -> None:
    with pytest.raises(BadDecision, match=fault):
        close(lake, **wrong)
    assert decisions(lake) == []


def test_a_decision_is_withdrawn_once_and_both_stay(lake: Lake) -> None:
    one, answer = close(lake), {"decided_by": "B. Clerk", "reason": "another vehicle"}
    back = withdraw(lake, 1, now=NOW, **answer)
    assert (back.number, back.withdraws, back.of_device, back.until) == (2, 1, DEVICE, END)
    assert decisions(lake) == [one, back]
    assert withdraw(lake, 1, now=NOW + timedelta(hours=1), **answer) == back
    for number, fault in ((1, "withdrawn by B. Clerk"), (2, "2 is the number of none"), (9, "9 is the number of none")):
        with pytest.raises(BadDecision, match=fault):
            withdraw(lake, number, decided_by="C. Clerk", reason="why not", now=NOW)
    # what is decided again is another decision
    assert close(lake, reason="sold all the same").number == 3


def test_several_devices_are_decided_on_in_one_commit_and_each_has_a_number(lake: Lake) -> None:
    others = [TenantDevice("acme", name) for name in ("e", "f")]
    said: dict[str, Any] = {"decided_by": "A. Clerk", "reason": "the vehicle was sold", "now": NOW}
    first, version = close(lake), lake.open("decisions").version()
    made = decide_each(lake, dict.fromkeys([DEVICE, *others], ClosedState.SILENT), (START, END), **said)
    assert [(one.number, one.device) for one in made] == [(1, "d"), (2, "e"), (3, "f")]
    assert (made[0], lake.open("decisions").version()) == (first, version + 1)
    assert decisions(lake, devices=others[:1]) == [made[1]]
    assert decisions(lake, devices=[]) == []
