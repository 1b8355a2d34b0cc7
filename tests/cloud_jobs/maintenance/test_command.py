"""`cloud-jobs maintain` as a command: what it prints, how it ends, and that options that do not fit are refused."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Event

import pytest
from typer.testing import CliRunner, Result

from cloud_jobs.__main__ import app
from cloud_jobs.derived.incremental import commit_written, next_increment
from cloud_jobs.errors import ClockError, CommitFailed, LakeError, StoreUnavailable
from cloud_jobs.lake.tables import Lake
from cloud_jobs.operator_commands import _repeat
from tests.cloud_jobs.ingest.centre import batch, new_ingest, new_lake, seqs_in_table, take_in
from tests.cloud_jobs.maintenance.upkeep import folder_of, positions


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = new_lake(tmp_path / "lake")
    writer = new_ingest(made)
    for seq in (1, 2, 3):
        take_in(made, writer, [batch(seq), positions(seq + 10, day=0)])
    return made


def maintain(lake: Lake, *options: str) -> Result:
    config = folder_of(lake).parent / "cloud.toml"
    config.write_text(
        f'lake = "{folder_of(lake)}"\ncheckpoints = "{folder_of(lake).parent}"\n'
        '[[clusters]]\nname = "hq"\nservice_url = "pulsar://127.0.0.1:1"\nadmin_url = "http://127.0.0.1:1"\n'
        "[maintenance]\nremoved_files_kept_hours = 0\n",
        encoding="utf-8",
    )
    return CliRunner().invoke(app, ["maintain", "-c", str(config), *options])


def test_a_run_says_what_it_did_as_a_table_and_as_json(lake: Lake) -> None:
    shown = maintain(lake)
    assert shown.exit_code == 0
    assert "records" in shown.stdout
    assert "3 to 1" in shown.stdout
    document = json.loads(maintain(lake, "--json").stdout)
    assert document["tables"][0]["table"] == "records"
    assert document["tables"][0]["files"] == 1


def test_positions_of_a_device_are_erased(lake: Lake) -> None:
    asked = ["--json", "--erase", "d", "--tenant", "acme", "--before", "2026-02-01"]
    waits = maintain(lake, *asked)
    assert waits.exit_code == 1
    assert "3 of them are not computed from yet; run `cloud-jobs usage`" in waits.stderr
    assert maintain(lake, "--erasures").stdout == "nothing was ever declared erased\n"
    commit_written(next_increment(lake, "usage"), [])
    erased = maintain(lake, *asked)
    assert json.loads(erased.stdout)["positions_erased"] == 3
    assert seqs_in_table(lake) == [1, 2, 3]
    assert maintain(lake, "--erasures").stdout.startswith("1  acme/d  positions before 2026-02-01T00:00:00+00:00")
    assert json.loads(maintain(lake, "--erasures", "--json").stdout)["device"] == "d"


@pytest.mark.parametrize(
    "error",
    [LakeError("x"), ClockError("x"), CommitFailed("x", "y"), StoreUnavailable("s", "x"), OSError(), TypeError()],
)
def test_again_and_again_survives_whatever_a_run_raises(error: Exception) -> None:
    stop = Event()
    runs = []

    def once() -> bool:
        runs.append(1)
        if len(runs) == 1:
            raise error
        stop.set()
        return True

    assert _repeat(once, 0.0, stop)
    assert len(runs) == 2
