"""`waybill decisions`: what is typed is decided, and what is wrong ends with a message."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cloud_jobs.billing.certificates import ClosedState, decisions
from cloud_jobs.billing.certificates.cli import app
from cloud_jobs.lake.tables import Lake
from tests.cloud_jobs.ingest.centre import batch, new_ingest, new_lake, take_in

NAMED = ["--tenant", "acme", "--device", "d", "--until", "2026-10-01", "--by", "A. Clerk", "--reason", "it was [sold]"]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = new_lake(tmp_path)
    take_in(made, new_ingest(made), [batch(1, 2)])
    return made


def run(lake: Lake, *words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, [*words, "--lake", str(lake.location)])
    return result.exit_code, result.output


def test_a_decision_is_made_and_listed(lake: Lake) -> None:
    status, shown = run(lake, "close-device", *NAMED, "--closes", "silent", "--json")
    assert (status, json.loads(shown)[0]["until"]) == (0, "2026-10-01T00:00:00Z")
    (one,) = decisions(lake)
    assert (one.kind, one.decided_by, one.reason) == (ClosedState.SILENT, "A. Clerk", "it was [sold]")
    status, shown = run(lake, "list")
    assert status == 0
    assert "it was [sold]" in shown
    assert json.loads(run(lake, "list", "--json")[1]) == [one.of_device._asdict() | one.document()]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--closes", "complete"], "complete"),
        (["--closes", "open", "--until", "soon"], "'soon' is no moment"),
        (["--closes", "open", "--until", "2999-01-01"], "has not come yet"),
        (["--closes", "open", "--device", "e"], "nothing was ever heard of it"),
        (["--closes", "open", "--reason", ""], "it needs a reason"),
    ],
)
def test_what_cannot_be_decided_ends_with_a_message(lake: Lake, wrong: list[str], message: str) -> None:
    status, shown = run(lake, "close-device", *NAMED, *wrong)
    assert status != 0
    assert message in shown
    assert decisions(lake) == []
