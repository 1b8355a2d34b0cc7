"""`waybill reference check`, `list --kind` and `diff` as commands: what they print, and how they end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cloud_jobs.lake.tables import Lake
from cloud_jobs.reference import store
from cloud_jobs.reference_cli import app
from cloud_jobs.reference_files import read_placed
from geo.reference.messages import ANYBODY
from tests.cloud_jobs.billing.contracts.makers import account, tariff
from tests.cloud_jobs.publications import AT, message_of, row_of
from tests.cloud_jobs.test_reference_publisher import CONTRACTS

TARIFF, ACCOUNT = tariff(id="t"), account("acme", tariff="t")


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A tariff and an account in force, and a message in the quarantine of each."""
    lake = Lake(tmp_path / "lake")
    lake.create()
    lake.append("reference", [row_of("tariff", "t", TARIFF, 0), row_of("account", "acme", ACCOUNT, 1)])
    for kind, body in (("tariff", TARIFF), ("account", ACCOUNT)):
        store(lake, {kind: [message_of(kind, body, 9, key="x")]}, ANYBODY, now=lambda: AT)  # type: ignore[arg-type, dict-item]
    return tmp_path / "lake"


@pytest.fixture
def contracts(tmp_path: Path) -> Path:
    file = tmp_path / "contracts.toml"
    file.write_text(CONTRACTS)
    return file


def run(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(map(str, words)))
    return done.exit_code, done.output


@pytest.mark.parametrize(("kind", "thing"), [("tariff", "t"), ("account", "acme")])
def test_a_list_of_one_kind_has_nothing_of_another(lake: Path, kind: str, thing: str) -> None:
    code, text = run("list", "--lake", lake, "--kind", kind, "--json")
    found = json.loads(text)
    assert (code, [(row["kind"], row["id"]) for row in found["versions"]]) == (0, [(kind, thing)])
    assert [row["topic"].rpartition("/")[2] for row in found["quarantined"]] == [f"{kind}s"]
    assert len(json.loads(run("list", "--lake", lake, "--json")[1])["versions"]) == 2


@pytest.mark.parametrize("command", [["list"], ["history", "t"]])
def test_a_kind_that_is_none_is_refused_with_those_that_are(lake: Path, command: list[str]) -> None:
    code, text = run(*command, "--lake", lake, "--kind", "tarif")
    assert code == 2
    assert "'tarif'" in text
    assert "tariff" in text.replace("'tarif'", "")


def test_a_diff_names_each_field_that_would_change_and_ends_with_1(lake: Path, contracts: Path) -> None:
    code, text = run("diff", contracts, "--lake", lake, "--json")
    found = {(row["kind"], row["id"]): row for row in json.loads(text)["versions"]}
    assert code == 1
    assert found["account", "acme"]["change"] != "same"
    assert {field["path"] for field in found["account", "acme"]["fields"]} >= {"parent"}
    code, text = run("diff", contracts, "--lake", lake)
    assert code == 1
    assert f"{contracts}" in text
    assert "parent" in text


def test_a_diff_beside_nothing_is_all_new_and_of_what_is_in_force_it_ends_with_0(
    tmp_path: Path, contracts: Path
) -> None:
    lake = Lake(tmp_path / "begun")
    lake.create()
    code, text = run("diff", contracts, "--lake", tmp_path / "begun", "--json")
    assert (code, {row["change"] for row in json.loads(text)["versions"]}) == (1, {"new"})
    versions = [placed.version for placed in read_placed([contracts])]
    bodies = [(one.kind, one.id, json.loads(one.body)) for one in versions]
    lake.append("reference", [row_of(kind, name, body, at) for at, (kind, name, body) in enumerate(bodies)])
    assert run("diff", contracts, "--lake", tmp_path / "begun")[0] == 0


def test_a_check_ends_with_1_at_a_fault_and_names_its_place(contracts: Path) -> None:
    assert run("check", contracts)[0] == 0
    contracts.write_text(CONTRACTS.replace('unit_amount = "0.45"', 'unit_amount = "lots"'))
    code, text = run("check", contracts)
    assert code == 1
    assert f"{contracts}:9: tariff 't': prices.0.unit_amount" in text


def test_files_that_cannot_be_read_are_said_in_one_line(lake: Path, tmp_path: Path) -> None:
    for words in (["check", tmp_path / "none.toml"], ["diff", tmp_path / "none.toml", "--lake", lake]):
        code, text = run(*words)
        assert (code, "none.toml" in text, "Traceback" in text) == (1, True, False)


def test_a_repaired_fence_is_a_warning_of_a_check_and_of_its_json(tmp_path: Path) -> None:
    ring = [[10, 53.5], [10.1, 53.6], [10.1, 53.5], [10, 53.6], [10, 53.5]]
    geometry = {"type": "Polygon", "coordinates": [ring]}
    file = tmp_path / "fences.geojson"
    file.write_text(json.dumps({"type": "Feature", "properties": {"id": "a"}, "geometry": geometry}))
    code, text = run("check", file)
    assert (code, f"warning: {file}: line 1: fence 'a': repaired: " in text) == (0, True)
    (warning,) = json.loads(run("check", file, "--json")[1])["warnings"]
    assert "repaired" in warning
