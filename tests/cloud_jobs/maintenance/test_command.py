"""`cloud-jobs maintain` as a command: what it prints, how it ends, and that options that do not fit are refused."""

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event

import pytest
from typer.testing import CliRunner, Result

from cloud_jobs.__main__ import app
from cloud_jobs.errors import ClockError, CommitFailed, LakeError, StoreUnavailable
from cloud_jobs.ingest.decoding import decode_messages
from cloud_jobs.ingest.micro_batch import CrashPoint
from cloud_jobs.ingest.parts import write_part
from cloud_jobs.job_settings import MaintenanceSettings
from cloud_jobs.lake.tables import Lake
from cloud_jobs.lake.transactions import MAX_ATTEMPT_S
from cloud_jobs.maintenance.job import Maintenance
from cloud_jobs.operator_commands import repeat_until
from tests.cloud_jobs.ingest.centre import batch, check, new_ingest, take_in
from tests.cloud_jobs.ingest.test_decoding import messages
from tests.cloud_jobs.maintenance.upkeep import folder_of, positions
from tests.new_lakes import new_lake
from waybill.record import IntervalSet


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
    document = json.loads(maintain(lake, "--json").stdout)
    assert (document["tables"][0]["table"], document["tables"][0]["files"]) == ("records", 1)
    assert maintain(lake, "--erasures").stdout == ""


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

    repeat_until(stop, once, 0.0)
    assert len(runs) == 2


@pytest.fixture
def lake_of_clocks(tmp_path: Path) -> Lake:
    made = new_lake(tmp_path)
    take_in(made, new_ingest(made), [positions(1, 2, 3)])
    return made


@pytest.mark.parametrize("hours", [-5, 5, 24 * 365])
def test_a_clock_that_is_not_that_of_the_store_stops_the_run(lake_of_clocks: Lake, hours: int) -> None:
    def maintain(point: CrashPoint) -> None:
        if point is CrashPoint.COVERAGE_WRITTEN:
            wrong = datetime.now(UTC) + timedelta(hours=hours)
            settings = MaintenanceSettings(erase_positions_after_days=30)
            with pytest.raises(ClockError, match="clock"):
                Maintenance(lake_of_clocks, settings, now=lambda: wrong).run()

    # the files of a micro-batch in flight are named by no commit yet
    take_in(lake_of_clocks, new_ingest(lake_of_clocks, maintain), [batch(4)])
    assert check(lake_of_clocks) == IntervalSet([(1, 4)])
    assert lake_of_clocks.rows("erasures").num_rows == 0


def test_a_clock_that_is_set_back_does_not_make_a_long_micro_batch_a_short_one(lake_of_clocks: Lake) -> None:
    writer = new_ingest(lake_of_clocks)
    attempt = writer.begin()
    decoded = next(decode_messages([messages(batch(4))]))
    part = write_part(lake_of_clocks, decoded, attempt.ingest_number, attempt.now)
    with pytest.raises(CommitFailed, match="took longer than"):
        writer.write(attempt._replace(began_s=time.monotonic() - MAX_ATTEMPT_S - 1), [part])
