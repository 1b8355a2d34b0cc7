"""`waybill decisions`: what is typed is decided, and what is wrong ends with a message."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from cloud_jobs.billing.certificates import ClosedState, decisions
from cloud_jobs.billing.certificates.cli import app
from cloud_jobs.lake import store_clock
from cloud_jobs.lake.tables import Lake
from telemetry import Batch, encode
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
    made.append("reference", rows(account("acme", device("d"), device("never"), payer=pays)))
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
    status, shown = run(lake, "close-device", *NAMED, *OF_PERIOD, "--device", "never")
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
        (["--device", "e"], "no account names it"),
        (["--reason", ""], "it needs a reason"),
    ],
)
def test_what_cannot_be_decided_ends_with_a_message(lake: Lake, wrong: list[str], message: str) -> None:
    status, shown = run(lake, "close-device", *NAMED, *OF_PERIOD, *wrong)
    assert status != 0
    assert message in " ".join(shown.split())
    assert decisions(lake) == []


def test_a_clock_that_is_years_ahead_decides_nothing(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = datetime.now(UTC) + timedelta(days=3650)
    monkeypatch.setattr(store_clock, "datetime", SimpleNamespace(now=lambda _: ahead))
    status, shown = run(lake, "close-device", *NAMED, *OF_PERIOD, "--period", f"{ahead.year - 1}-01")
    assert (status != 0, "this machine's clock says" in shown) == (True, True)
    assert decisions(lake) == []


def test_what_a_device_stated_needs_no_decision(lake: Lake) -> None:
    take_in(lake, new_ingest(lake), [("fleet", encode(Batch("d", 7, 2, stated_us=1_900_000_000_000_000)))])
    found = run(lake, "close-device", *NAMED, *OF_PERIOD, "--period", "2025-12")
    assert (found[0], "nothing has to be decided" in found[1]) == (1, True)


def test_a_gap_is_not_closed_by_a_decision_on_silence(lake: Lake) -> None:
    take_in(lake, new_ingest(lake), [("fleet", batch(5))])
    found = run(lake, "close-device", *NAMED, *OF_PERIOD, "--closes", "silent")
    assert (found[0], "it is open" in " ".join(found[1].split())) == (1, True)
