"""The commands, as a person or a script runs them."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simulator.__main__ import app

runner = CliRunner()


def run(*words: str) -> str:
    result = runner.invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_scenario_is_written(tmp_path: Path) -> None:
    printed = json.loads(run("scenario", "--vehicles", "4", "--out", str(tmp_path / "s")))
    assert printed["vehicles"] == 4
    assert all(Path(file).exists() for file in printed["files"])


def test_the_truth_is_printed(tmp_path: Path) -> None:
    run("scenario", "--vehicles", "4", "--duration", "1200", "--out", str(tmp_path))
    line = {"device": "eu-0001", "kind": "canary", "time": 1767597600000, "content": {"id": "c"}}
    (tmp_path / "made.jsonl").write_text(json.dumps(line) + "\n")
    printed = json.loads(run("truth", "--scenario", str(tmp_path)))
    assert printed["records"] == {"eu-0001": {"position": 0, "signal": 0, "event": 0, "canary": 1, "raw": 0, "all": 1}}
    assert printed["owed"]["kaze"] == {"currency": "JPY", "net_minor": 0, "gross_minor": 0, "charges": []}
    charges = {one["meter"]: (one["device"], one["amount_minor"]) for one in printed["owed"]["acme"]["charges"]}
    assert charges == {"active day": ("eu-0001", 150), "transmitted": ("eu-0001", 0)}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("drive", "--scenario", "SCENARIO", "--brokers", "BROKERS"), "has no broker for eu-0001, us-0001"),
        (("drive", "--scenario", "nowhere", "--brokers", "BROKERS"), "write it with `fleet-simulator scenario`"),
        (("truth", "--scenario", "SCENARIO"), "made.jsonl: run `fleet-simulator drive` first"),
        (("scenario", "--out", "SCENARIO", "--regions", "mars"), "regions must be some of"),
    ],
)
def test_a_mistake_is_answered_in_one_line(tmp_path: Path, words: tuple[str, ...], reason: str) -> None:
    run("scenario", "--vehicles", "2", "--out", str(tmp_path))
    (tmp_path / "brokers.json").write_text("{}")
    named = {"SCENARIO": str(tmp_path), "BROKERS": str(tmp_path / "brokers.json")}
    result = runner.invoke(app, [named.get(word, word) for word in words])
    assert result.exit_code == 1
    assert reason in result.stderr
    assert "Traceback" not in result.output
