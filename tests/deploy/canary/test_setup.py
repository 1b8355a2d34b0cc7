"""`waybill canary setup` writes what has to be published, and nothing over what is there, unless that is said."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from cloud_jobs.reference.files import read_reference
from deploy.canary.cli import app
from tests.deploy.canary.canaries import CANARY_FILE


def run_setup(folder: Path, *options: str) -> tuple[int, str]:
    config = folder / "canary.toml"
    config.write_text(CANARY_FILE)
    done = CliRunner().invoke(app, ["setup", "--config", str(config), "--out", str(folder / "out"), *options])
    return done.exit_code, done.output


def test_what_it_writes_can_be_published(tmp_path: Path) -> None:
    code, said = run_setup(tmp_path)
    assert (code, f"written: {tmp_path / 'out' / 'fences.geojson'}" in said) == (0, True), said
    assert len(read_reference([tmp_path / "out"])) == 4


def test_files_that_are_there_are_named_and_stay_as_they_are(tmp_path: Path) -> None:
    assert run_setup(tmp_path)[0] == 0
    (tmp_path / "out" / "fences.geojson").unlink()
    kept = tmp_path / "out" / "contracts.toml"
    kept.write_text("# by hand\n")
    code, said = run_setup(tmp_path)
    assert (code, str(kept) in said, "--replace" in said) == (1, True, True), said
    # neither of both: what is published together was written together
    assert [one.name for one in (tmp_path / "out").iterdir()] == ["contracts.toml"]
    assert kept.read_text() == "# by hand\n"
    assert run_setup(tmp_path, "--replace")[0] == 0
    assert len(read_reference([tmp_path / "out"])) == 4
