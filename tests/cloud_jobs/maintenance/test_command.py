"""`cloud-jobs maintain` as a command: what it prints, how it ends, and that options that do not fit are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cloud_jobs.__main__ import app
from cloud_jobs.lake.tables import Lake
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


def test_a_dry_run_says_so(lake: Lake) -> None:
    shown = maintain(lake, "--dry-run")
    assert shown.stdout.startswith("nothing is changed; a run would do:")
    assert len(lake.open("records").file_uris()) == 3


def test_positions_of_a_device_are_erased(lake: Lake) -> None:
    erased = maintain(lake, "--json", "--erase", "d", "--tenant", "acme", "--before", "2026-02-01")
    assert json.loads(erased.stdout)["positions_erased"] == 3
    assert seqs_in_table(lake) == [1, 2, 3]


@pytest.mark.parametrize("options", [["--erase", "d"], ["--before", "2026-02-01"], ["--tenant", "acme"]])
def test_half_of_an_erasure_is_refused(lake: Lake, options: list[str]) -> None:
    assert maintain(lake, *options).exit_code == 2


def test_a_table_that_cannot_be_maintained_is_named_and_the_others_are(lake: Lake) -> None:
    for path in (folder_of(lake) / "records").rglob("*.parquet"):
        path.write_bytes(b"PAR1")
    shown = maintain(lake)
    assert shown.exit_code == 1
    assert "cloud-jobs: records: " in shown.stderr
    assert "ingest_batches" in shown.stdout
