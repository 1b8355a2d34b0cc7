"""The commands, as a person or a script runs them."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simulator.__main__ import app
from tests.simulator.runs import RECORDING

DOCUMENT = Path(__file__).parents[2] / "docs" / "simulator.md"
runner = CliRunner()


def run(*words: str) -> str:
    result = runner.invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_scenario_is_written_and_shown(tmp_path: Path) -> None:
    printed = run("scenario", "--seed", "7", "--vehicles", "4", "--out", str(tmp_path / "s"))
    assert "Hamburg" in printed
    assert "standard-jpy in JPY" in printed
    again = json.loads(run("scenario", "--vehicles", "4", "--out", str(tmp_path / "s"), "--json"))
    assert again["vehicles"] == 4
    assert all(Path(file).exists() for file in again["files"])


@pytest.mark.skipif(not RECORDING.exists(), reason=f"{RECORDING.name} is not here")
def test_a_recording_is_replayed_and_its_rows_are_reported(tmp_path: Path) -> None:
    printed = json.loads(run("scenario", "--replay", str(RECORDING), "--out", str(tmp_path), "--json"))
    assert printed["recording"] == {"rows": 1533, "left_out": {}}
    assert (tmp_path / "track.csv").exists()


def test_the_truth_is_shown_as_tables_and_as_json(tmp_path: Path) -> None:
    run("scenario", "--vehicles", "4", "--duration", "1200", "--out", str(tmp_path))
    line = {"device": "eu-0001", "kind": "canary", "time": 1767597600000, "content": {"id": "c"}}
    (tmp_path / "made.jsonl").write_text(json.dumps(line) + "\n")
    printed = json.loads(run("truth", "--scenario", str(tmp_path), "--json"))
    assert printed["records"] == {"eu-0001": {"position": 0, "signal": 0, "event": 0, "canary": 1, "raw": 0, "all": 1}}
    assert printed["owed"]["kaze"] == {"currency": "JPY", "net_minor": 0, "gross_minor": 0, "charges": []}
    charges = {one["meter"]: (one["device"], one["amount_minor"]) for one in printed["owed"]["acme"]["charges"]}
    assert charges == {"active day": ("eu-0001", 150), "transmitted": ("eu-0001", 0)}
    assert "acme owes 1.79 EUR with tax" in run("truth", "--scenario", str(tmp_path))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("drive", "--scenario", "SCENARIO"), "no local broker is given for eu-0001, us-0001"),
        (("drive", "--scenario", "SCENARIO", "--broker", "eu-0001"), "is not a valid DEVICE=HOST:PORT"),
        (("drive", "--scenario", "nowhere"), "write it with `fleet-simulator scenario`"),
        (("truth", "--scenario", "SCENARIO"), "made.jsonl: run `fleet-simulator drive` first"),
        (("scenario", "--out", "SCENARIO", "--start", "noon"), "is not a valid ISO 8601 time"),
        (("scenario", "--out", "SCENARIO", "--start", "2026-01-01T00:00:00"), "needs an offset"),
        (("scenario", "--out", "SCENARIO", "--regions", "mars"), "regions must be some of"),
    ],
)
def test_a_mistake_is_answered_in_one_line(tmp_path: Path, words: tuple[str, ...], reason: str) -> None:
    run("scenario", "--vehicles", "2", "--out", str(tmp_path))
    result = runner.invoke(app, [str(tmp_path) if word == "SCENARIO" else word for word in words])
    assert result.exit_code == 1
    assert reason in result.stderr
    assert "Traceback" not in result.output
