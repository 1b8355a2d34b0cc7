"""The drill's commands and its sweep, without a server."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from cloud_jobs.lake.coverage import DeviceStream
from cloud_jobs.lake.tables import Lake
from deploy.drill.cli import (
    app,
    as_json,
    drill_table,
    points,
    sweep,
)
from deploy.drill.drills import CentralTable, Outcome
from deploy.drill.environment import Drill, DrillSettings, Moment
from deploy.drill.findings import compute_findings
from tests.deploy.test_drill_findings import TIMELINE
from waybill.record import IntervalSet

NEVER = compute_findings(replace(TIMELINE, commits=TIMELINE.commits[:2]))


def printed(table: object) -> str:
    paper = io.StringIO()
    Console(width=160, file=paper).print(table)
    return paper.getvalue()


def test_waybill_offers_the_drill_and_every_drill_explains_itself() -> None:
    for name in [*(drill.value for drill in Drill), "sweep"]:
        answer = CliRunner().invoke(app, [name, "--help"])
        assert answer.exit_code == 0
        assert "--json" in answer.output


@pytest.mark.parametrize("arguments", [["hq-loss", "--records-per-s", "0"], ["hq-loss", "--trigger-s", "-1"]])
def test_settings_that_cannot_be_are_refused_before_a_server_starts(tmp_path: Path, arguments: list[str]) -> None:
    answer = CliRunner().invoke(app, [*arguments, "--folder", str(tmp_path / "drill")])
    assert answer.exit_code == 2
    assert not (tmp_path / "drill").exists()


@pytest.mark.parametrize("drill", list(Drill))
def test_every_drill_has_a_table_with_the_figures_that_were_asked(drill: Drill) -> None:
    text = printed(drill_table(Outcome(drill, compute_findings(TIMELINE), 0)))
    for words in ("acknowledged to devices", "in the central table", "lost", "not yet replicated", "duplicates in"):
        assert words in text
    for words in ("duplicates before deduplication", "first record through", "last record"):
        assert words in text
    assert "NO" not in text


def test_json_has_null_for_a_time_that_never_came() -> None:
    assert math.isinf(NEVER.first_through_s)
    document = as_json(Outcome(Drill.HQ_LOSS, NEVER, 3))
    assert json.loads(json.dumps(document, allow_nan=False))["first_through_s"] is None
    assert document["passed"] is False
    assert document["ingest_restarts"] == 3


def test_a_stack_that_cannot_start_leaves_its_points_not_run_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAYBILL_CACHE", str(tmp_path / "no-pulsar-here"))
    todo = points([0.5, 1.0], [1.0], [Moment.ANY, Moment.DONE])
    results = list(sweep(tmp_path / "drill", DrillSettings(), todo, lambda _: None))
    assert [result.point for result in results] == todo
    assert all("Pulsar" in result.error and not result.passed for result in results)
    kept = [json.loads(line) for line in (tmp_path / "drill" / "runs.jsonl").read_text().splitlines()]
    assert [(line["passed"], line["drills"]) for line in kept] == [(False, [])] * 4


def test_the_table_is_read_from_its_log_with_the_moment_of_each_commit(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.create()
    table = CentralTable(lake, epoch=7)
    assert table.commits() == []
    lake.append("records", [row(1), row(2), row(2), row(9, epoch=8)])
    lake.append("records", [row(3)])
    first, second = table.commits()
    assert first.record_ids == {DeviceStream("fleet", "eu-0001", 7): IntervalSet([(1, 2)])}
    assert second.record_ids == {DeviceStream("fleet", "eu-0001", 7): IntervalSet([(3, 3)])}
    assert first.at_s <= second.at_s
    assert table.record_ids() == {DeviceStream("fleet", "eu-0001", 7): IntervalSet([(1, 3)])}
    assert table.rows() == 4


def row(seq: int, epoch: int = 7) -> dict[str, object]:
    fixed = {"tenant": "fleet", "device": "eu-0001", "kind": "position", "device_time": 1_767_603_422_000_000}
    return fixed | {"epoch": epoch, "seq": seq, "ingest_number": 1, "content_bytes": 32}
