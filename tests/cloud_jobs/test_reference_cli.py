"""`waybill reference check`, `list --kind` and `diff` as commands: what they print, and how they end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cloud_jobs.lake.tables import Lake
from cloud_jobs.reference.commands import app
from cloud_jobs.reference.tables import store
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


def test_a_check_ends_with_1_at_a_fault_and_names_its_place(contracts: Path) -> None:
    assert run("check", contracts)[0] == 0
    contracts.write_text(CONTRACTS.replace('unit_amount = "0.45"', 'unit_amount = "lots"'))
    code, text = run("check", contracts)
    assert code == 1
    assert f"{contracts}:9: tariff 't': prices.0.unit_amount" in text
