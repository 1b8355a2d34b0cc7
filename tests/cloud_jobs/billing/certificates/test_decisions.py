"""A person may close what a device does not say: with a name and a reason, once, and never for time to come."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cloud_jobs.billing.certificates import BadDecision, ClosedState, Decision, decide, decisions, withdraw
from cloud_jobs.billing.certificates import cli as decisions_cli
from cloud_jobs.billing.certificates.cli import app
from cloud_jobs.billing.certificates.decisions import decide_each
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.snapshots import take_snapshot
from cloud_jobs.lake.tables import Lake
from tests.cloud_jobs.billing.contracts.makers import account, device, payer, rows
from tests.cloud_jobs.billing.page_lake import DOCS, NOW, PageLake
from tests.cloud_jobs.ingest.centre import batch, new_ingest, take_in
from tests.new_lakes import new_lake
from tests.page_sessions import assert_shown, steps_of

DEVICE = TenantDevice("acme", "d")
DECIDED = datetime(2026, 10, 3, 9, tzinfo=UTC)
START, END = datetime(2026, 9, 1, tzinfo=UTC), datetime(2026, 10, 1, tzinfo=UTC)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = new_lake(tmp_path)
    take_in(made, new_ingest(made), [batch(1, 2)])
    return made


def close(lake: Lake, **other: Any) -> Decision:
    usual: dict[str, Any] = {"device": DEVICE, "kind": ClosedState.SILENT, "span": (START, END)}
    usual |= {"decided_by": "A. Clerk", "reason": "the vehicle was sold", "now": DECIDED}
    return decide(lake, **(usual | other))


def test_decisions_are_numbered_and_stay_as_they_were_made(lake: Lake) -> None:
    one = close(lake)
    two = close(lake, kind=ClosedState.OPEN, reason="its disk is broken", now=DECIDED + timedelta(hours=1))
    assert (one.number, two.number) == (1, 2)
    assert decisions(lake) == [one, two]
    assert (two.decided_by, two.until, two.decided_at) == ("A. Clerk", END, DECIDED + timedelta(hours=1))


def test_a_decision_that_is_sent_again_is_the_same_one(lake: Lake) -> None:
    assert close(lake) == close(lake, now=DECIDED + timedelta(hours=1), reason="  the vehicle was sold ")
    assert len(decisions(lake)) == 1


def test_a_snapshot_has_the_decisions_that_were_made_by_then(lake: Lake) -> None:
    none = take_snapshot(lake, DECIDED)
    close(lake)
    one = take_snapshot(lake, DECIDED)
    close(lake, reason="another one")
    assert [len(decisions(lake, at)) for at in (none, one, None)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        ({"decided_by": " "}, "the name of who decides"),
        ({"decided_by": "x" * 201}, "at most 200 characters"),
        ({"reason": "ok"}, "a reason, 3 to 2000 characters"),
        ({"reason": "sold\nto whom"}, "one line of text"),
        ({"span": (START, DECIDED + timedelta(seconds=1))}, "2026-10-03T09:00:01Z has not come yet"),
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
    back = withdraw(lake, 1, now=DECIDED, **answer)
    assert (back.number, back.withdraws, back.of_device, back.until) == (2, 1, DEVICE, END)
    assert decisions(lake) == [one, back]
    assert withdraw(lake, 1, now=DECIDED + timedelta(hours=1), **answer) == back
    for number, fault in (
        (1, "withdrawn by B. Clerk"),
        (2, "2 is not the number of a decision"),
        (9, "9 is not the number of a decision"),
    ):
        with pytest.raises(BadDecision, match=fault):
            withdraw(lake, number, decided_by="C. Clerk", reason="why not", now=DECIDED)
    # what is decided again is another decision
    assert close(lake, reason="sold all the same").number == 3


def test_several_devices_are_decided_on_in_one_commit_and_each_has_a_number(lake: Lake) -> None:
    others = [TenantDevice("acme", name) for name in ("e", "f")]
    said: dict[str, Any] = {"decided_by": "A. Clerk", "reason": "the vehicle was sold", "now": DECIDED}
    first, version = close(lake), lake.open("decisions").version()
    made = decide_each(lake, dict.fromkeys([DEVICE, *others], ClosedState.SILENT), (START, END), **said)
    assert [(one.number, one.device) for one in made] == [(1, "d"), (2, "e"), (3, "f")]
    assert (made[0], lake.open("decisions").version()) == (first, version + 1)
    assert decisions(lake, devices=others[:1]) == [made[1]]
    assert decisions(lake, devices=[]) == []


NAMED = ["--tenant", "fleet", "--device", "d", "--by", "A. Clerk", "--reason", "it was [sold]"]
OF_PERIOD = ["--payer", "acme", "--period", "2026-09"]


@pytest.fixture
def silent_lake(tmp_path: Path) -> Lake:
    """A device that was heard of and stated nothing, of a payer in New York."""
    made = new_lake(tmp_path)
    take_in(made, new_ingest(made), [("fleet", batch(1, 2))])
    pays = payer(time_zone="America/New_York")
    made.append("reference", rows(account("acme", device("d"), device("never"), payer=pays), account("ny")))
    return made


def run(lake: Lake, *words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, [*words, "--lake", str(lake.location)])
    return result.exit_code, result.output


def test_a_decision_is_of_the_days_by_the_clocks_of_who_pays(silent_lake: Lake) -> None:
    status, shown = run(silent_lake, "close-device", *NAMED, *OF_PERIOD)
    assert status == 0
    assert "closed from 2026-09-01T04:00:00Z to 2026-10-01T04:00:00Z, 2026-09 in America/New_York" in " ".join(
        shown.split()
    )
    assert "never sent a statement" in shown
    (one,) = decisions(silent_lake)
    assert (one.kind, one.decided_by, one.reason) == (ClosedState.SILENT, "A. Clerk", "it was [sold]")
    status, shown = run(silent_lake, "list")
    assert (status, "it was [sold]" in shown) == (0, True)
    assert json.loads(run(silent_lake, "list", "--json")[1]) == [one.of_device._asdict() | one.document()]


def test_a_device_of_the_contract_that_nothing_ever_came_from_is_decided(silent_lake: Lake) -> None:
    status, shown = run(silent_lake, "close-device", *NAMED[:2], *NAMED[4:], *OF_PERIOD, "--device", "never")
    assert (status, "never sent anything" in shown) == (0, True)


def test_a_decision_is_withdrawn_by_its_number(silent_lake: Lake) -> None:
    run(silent_lake, "close-device", *NAMED, *OF_PERIOD)
    status, shown = run(silent_lake, "withdraw", "1", "--by", "B. Clerk", "--reason", "another vehicle", "--json")
    assert (status, json.loads(shown)[0]["withdraws"]) == (0, 1)
    assert "withdraws 1" in run(silent_lake, "list")[1]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--closes", "complete"], "complete"),
        (["--period", "soon"], "soon"),
        (["--period", "2999-01"], "has not come yet"),
        (["--payer", "beta"], "'beta' is not a payer"),
        (["--payer", "ny"], "'ny' does not pay for it in 2026-09"),
        (["--reason", ""], "it needs a reason"),
    ],
)
def test_what_cannot_be_decided_ends_with_a_message(silent_lake: Lake, wrong: list[str], message: str) -> None:
    status, shown = run(silent_lake, "close-device", *NAMED, *OF_PERIOD, *wrong)
    assert status != 0
    assert message in " ".join(shown.split())
    assert decisions(silent_lake) == []


def test_a_device_that_no_account_names_is_not_decided_on(silent_lake: Lake) -> None:
    for words in (["--tenant", "other", *NAMED[2:]], [*NAMED[:2], *NAMED[4:], "--device", "e"]):
        status, shown = run(silent_lake, "close-device", *words, *OF_PERIOD)
        assert (status, "'acme' does not pay for it in 2026-09" in " ".join(shown.split())) == (1, True)


def test_several_devices_are_decided_on_at_once_or_none_of_them(silent_lake: Lake, tmp_path: Path) -> None:
    file = tmp_path / "silent.txt"
    file.write_text("never\nelsewhere\n\n", encoding="utf-8")
    status, shown = run(silent_lake, "close-device", *NAMED, *OF_PERIOD, "--devices", str(file))
    assert (status, "fleet/elsewhere: 'acme' does not pay" in " ".join(shown.split())) == (1, True)
    assert decisions(silent_lake) == []
    file.write_text("never\n", encoding="utf-8")
    status, shown = run(silent_lake, "close-device", *NAMED, *OF_PERIOD, "--devices", str(file))
    assert (status, shown.count("is closed from 2026-09-01T04:00:00Z")) == (0, 2)
    assert [one.device for one in decisions(silent_lake)] == ["d", "never"]
    file.write_text("fleet/never\n", encoding="utf-8")
    by = [*NAMED[4:], *OF_PERIOD, "--devices", str(file)]
    status, shown = run(silent_lake, "close-device", *by, "--device", "fleet/d")
    assert (status, shown.count("is closed"), len(decisions(silent_lake))) == (0, 2, 2)
    assert run(silent_lake, "close-device", *by, "--device", "d")[0] == 2
    for wrong in (["--devices", str(tmp_path / "none")], ["--devices", str(tmp_path)]):
        assert run(silent_lake, "close-device", *NAMED, *OF_PERIOD, *wrong)[0] == 2


PAGE = (DOCS / "certificates.md").read_text(encoding="utf-8")


def test_the_page_shows_what_its_program_and_its_commands_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    PageLake(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(decisions_cli, "checked_time", lambda _: NOW)
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (certificate,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(program, "certificates.md", "exec"), {})  # noqa: S102 - the project's own page
    assert capsys.readouterr().out == certificate
    steps = steps_of(PAGE)
    assert {line.split()[3] for line, _ in steps} == {"close-device", "withdraw", "list"}
    for line, expected in steps:
        assert_shown(line, expected)
