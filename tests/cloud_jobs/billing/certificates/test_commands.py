"""`waybill decisions`: what is typed is decided, and what is wrong ends with a message."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cloud_jobs.billing.certificates import ClosedState, decisions
from cloud_jobs.billing.certificates.cli import app
from cloud_jobs.lake.tables import Lake
from tests.cloud_jobs.billing.contracts.makers import account, device, payer, rows
from tests.cloud_jobs.ingest.centre import batch, new_ingest, new_lake, take_in

NAMED = ["--tenant", "fleet", "--device", "d", "--by", "A. Clerk", "--reason", "it was [sold]"]
OF_PERIOD = ["--payer", "acme", "--period", "2026-09"]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A device that was heard of and stated nothing, of a payer in New York."""
    made = new_lake(tmp_path)
    take_in(made, new_ingest(made), [("fleet", batch(1, 2))])
    pays = payer(time_zone="America/New_York")
    made.append("reference", rows(account("acme", device("d"), device("never"), payer=pays), account("ny")))
    return made


def run(lake: Lake, *words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, [*words, "--lake", str(lake.location)])
    return result.exit_code, result.output


def test_a_decision_is_of_the_days_by_the_clocks_of_who_pays(lake: Lake) -> None:
    status, shown = run(lake, "close-device", *NAMED, *OF_PERIOD)
    assert status == 0
    assert "closed from 2026-09-01T04:00:00Z to 2026-10-01T04:00:00Z, 2026-09 in America/New_York" in " ".join(
        shown.split()
    )
    assert "never stated what it has" in shown
    (one,) = decisions(lake)
    assert (one.kind, one.decided_by, one.reason) == (ClosedState.SILENT, "A. Clerk", "it was [sold]")
    status, shown = run(lake, "list")
    assert (status, "it was [sold]" in shown) == (0, True)
    assert json.loads(run(lake, "list", "--json")[1]) == [one.of_device._asdict() | one.document()]


def test_a_device_of_the_contract_that_nothing_ever_came_from_is_decided(lake: Lake) -> None:
    status, shown = run(lake, "close-device", *NAMED[:2], *NAMED[4:], *OF_PERIOD, "--device", "never")
    assert (status, "nothing was ever heard of it" in shown) == (0, True)


def test_a_decision_is_withdrawn_by_its_number(lake: Lake) -> None:
    run(lake, "close-device", *NAMED, *OF_PERIOD)
    status, shown = run(lake, "withdraw", "1", "--by", "B. Clerk", "--reason", "another vehicle", "--json")
    assert (status, json.loads(shown)[0]["withdraws"]) == (0, 1)
    assert "withdraws 1" in run(lake, "list")[1]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--closes", "complete"], "complete"),
        (["--period", "soon"], "soon"),
        (["--period", "2999-01"], "has not come yet"),
        (["--payer", "beta"], "'beta' is no payer"),
        (["--payer", "ny"], "'ny' does not pay for it in 2026-09: 'acme' does"),
        (["--reason", ""], "it needs a reason"),
    ],
)
def test_what_cannot_be_decided_ends_with_a_message(lake: Lake, wrong: list[str], message: str) -> None:
    status, shown = run(lake, "close-device", *NAMED, *OF_PERIOD, *wrong)
    assert status != 0
    assert message in " ".join(shown.split())
    assert decisions(lake) == []


def test_a_device_that_no_account_names_is_not_decided_on(lake: Lake) -> None:
    for words in (["--tenant", "other", *NAMED[2:]], [*NAMED[:2], *NAMED[4:], "--device", "e"]):
        status, shown = run(lake, "close-device", *words, *OF_PERIOD)
        assert (status, "no account that 'acme' pays for names it in 2026-09" in " ".join(shown.split())) == (1, True)


def test_several_devices_are_decided_on_at_once_or_none_of_them(lake: Lake, tmp_path: Path) -> None:
    file = tmp_path / "silent.txt"
    file.write_text("never\nelsewhere\n\n", encoding="utf-8")
    status, shown = run(lake, "close-device", *NAMED, *OF_PERIOD, "--devices", str(file))
    assert (status, "fleet/elsewhere: no account" in " ".join(shown.split())) == (1, True)
    assert decisions(lake) == []
    file.write_text("never\n", encoding="utf-8")
    status, shown = run(lake, "close-device", *NAMED, *OF_PERIOD, "--devices", str(file))
    assert (status, shown.count("is closed from 2026-09-01T04:00:00Z")) == (0, 2)
    assert [one.device for one in decisions(lake)] == ["d", "never"]
    file.write_text("fleet/never\n", encoding="utf-8")
    by = [*NAMED[4:], *OF_PERIOD, "--devices", str(file)]
    status, shown = run(lake, "close-device", *by, "--device", "fleet/d")
    assert (status, shown.count("is closed"), len(decisions(lake))) == (0, 2, 2)
    assert run(lake, "close-device", *by, "--device", "d")[0] == 2
    for wrong in (["--devices", str(tmp_path / "none")], ["--devices", str(tmp_path)]):
        assert run(lake, "close-device", *NAMED, *OF_PERIOD, *wrong)[0] == 2
