"""`cloud-jobs status` as a command: what it prints, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cloud_jobs.__main__ import app
from cloud_jobs.errors import StoreUnavailable
from cloud_jobs.pulsar_source.cluster_monitor import LeftOutNote
from tests.cloud_jobs.ingest.centre import batch, new_ingest, new_lake, take_in
from tests.cloud_jobs.pulsar_source.addresses import FakeAdmin, address
from tests.cloud_jobs.status.test_topic_lag import says
from tests.cloud_jobs.status.watched import note_maintenance


@pytest.fixture
def hq() -> Iterator[FakeAdmin]:
    with address() as one:
        one.says = says([0])
        yield one


def status(folder: Path, hq: FakeAdmin, *options: str, lake: str = "lake", more: str = "") -> Result:
    config = folder / "cloud.toml"
    config.write_text(
        f'lake = "{lake}"\ncheckpoints = "checkpoints"\n{more}\n'
        f'[[clusters]]\nname = "hq"\nservice_url = "pulsar://127.0.0.1:1"\nadmin_url = "{hq.url}"\n',
        encoding="utf-8",
    )
    return CliRunner().invoke(app, ["status", "-c", str(config), *options])


def test_it_ends_with_0_while_all_is_well_and_with_1_when_something_is_not(tmp_path: Path, hq: FakeAdmin) -> None:
    lake = new_lake(tmp_path / "lake")
    take_in(lake, new_ingest(lake), [batch(1, 2)])
    note_maintenance(lake)
    shown = status(tmp_path, hq)
    assert (shown.exit_code, shown.stdout.splitlines()[-1]) == (0, "healthy")
    hq.says = says([None])
    shown = status(tmp_path, hq)
    assert (shown.exit_code, "not healthy:" in shown.stdout) == (1, True)


def test_the_json_has_all_of_it_on_one_line(tmp_path: Path, hq: FakeAdmin) -> None:
    lake = new_lake(tmp_path / "lake")
    take_in(lake, new_ingest(lake), [batch(1, 2)])
    shown = status(tmp_path, hq, "--json")
    (line,) = shown.stdout.splitlines()
    found = json.loads(line)
    assert (found["healthy"], found["problems"]) == (False, ["no run of the maintenance is known"])
    assert (found["tables"][0]["table"], found["tables"][0]["rows"]) == ("records", 2)
    assert found["derived"][0]["age_s"] == found["tables"][0]["age_s"]
    assert found["newest_batch"]["accepted"] == 2


def test_a_lake_that_is_not_there_is_1_one_that_does_not_answer_is_75_and_wrong_settings_are_78(
    tmp_path: Path, hq: FakeAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert status(tmp_path, hq).exit_code == 1
    assert status(tmp_path, hq, lake="s3:/wrong").exit_code == 78

    def away(*_: object) -> None:
        raise StoreUnavailable("http://127.0.0.1:1", "Connection refused")

    monkeypatch.setattr("cloud_jobs.lake.tables.Lake.check", away)
    shown = status(tmp_path, hq)
    assert (shown.exit_code, "does not answer" in shown.stderr) == (75, True)


def test_a_topic_that_the_ingest_reads_without_is_named_and_after_a_while_not_healthy(
    tmp_path: Path, hq: FakeAdmin
) -> None:
    lake = new_lake(tmp_path / "lake")
    take_in(lake, new_ingest(lake), [batch(1, 2)])
    note_maintenance(lake)
    now = datetime.now(UTC)
    note = LeftOutNote(tmp_path / "checkpoints" / "left-out-topics.json", lambda: now)
    note.keep("hq", {"persistent://zeta/t/batches": "403"})
    shown = status(tmp_path, hq)
    assert (shown.exit_code, "not read" in shown.stdout, "zeta/t/batches" in shown.stdout) == (0, True, True)
    late = status(tmp_path, hq, more="[status]\nmax_lag_s = 0.001")
    assert (late.exit_code, "the ingest does not read persistent://zeta" in late.stdout) == (1, True)
    (found,) = json.loads(status(tmp_path, hq, "--json").stdout)["left_out"]
    assert (found["topic"], found["reason"]) == ("persistent://zeta/t/batches", "403")
    note.keep("hq", {})
    assert "not read" not in status(tmp_path, hq).stdout
    (tmp_path / "checkpoints" / "left-out-topics.json").write_text("{}")
    assert status(tmp_path, hq).exit_code == 1
