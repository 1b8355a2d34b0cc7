"""What the commands and the endpoint say of a buffer and its agent: whose it is, whether it runs, and since when."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import deploy
from edge_agent.cli import app
from tests.edge_agent.makers import DEVICE, WALL_MS, open_buffer, pending_record


def command(folder: Path, *words: str, device: str = DEVICE) -> Result:
    file = folder / "agent.toml"
    uplink = '[[uplinks]]\nregion = "eu"\nhost = "127.0.0.1"\n'
    file.write_text(f'[device]\nid = "{device}"\n[buffer]\npath = "{folder}"\n[status]\nport = 0\n{uplink}')
    return CliRunner().invoke(app, [words[0], "-c", str(file), *words[1:]])


@pytest.mark.parametrize("words", [("status",), ("export",)])
def test_the_buffer_of_another_device_is_not_shown_under_this_name(tmp_path: Path, words: tuple[str, ...]) -> None:
    open_buffer(tmp_path).close()
    found = command(tmp_path, *words, device="somebody-else")
    assert found.exit_code == 1
    assert found.stderr.startswith("edge-agent: ")
    assert f"belongs to default/{DEVICE}" in found.output


@pytest.mark.parametrize("words", [("status",), ("export",)])
def test_a_buffer_of_another_version_is_said_to_be_one_by_every_command(tmp_path: Path, words: tuple[str, ...]) -> None:
    buffer = open_buffer(tmp_path)
    for change in ("DROP TABLE dead_letter_batches", "DROP TABLE epochs", "PRAGMA user_version = 4"):
        buffer.database.writer.execute(change)
    buffer.database.close()
    found = command(tmp_path, *words)
    assert found.exit_code == 1
    assert "the buffer has version 4, and this agent reads version 9" in found.output


@pytest.mark.parametrize("words", [("status",), ("export",), ("check-config",)])
@pytest.mark.parametrize(
    ("text", "said"), [(None, "cannot be read: "), ('[devise]\nid = "x"', "devise: no such"), (".", "cannot be read: ")]
)
def test_a_configuration_that_is_missing_or_wrong_ends_every_command_with_78(
    tmp_path: Path, words: tuple[str, ...], text: str | None, said: str
) -> None:
    file = tmp_path / "agent.toml"
    if text == ".":
        file.mkdir()
    elif text is not None:
        file.write_text(text)
    found = CliRunner().invoke(app, [*words, "-c", str(file)])
    assert found.exit_code == os.EX_CONFIG
    assert f"{file}: {said}" in found.stderr
    assert all(line.startswith(f"{file}: ") for line in found.stderr.splitlines())


def test_the_example_of_the_page_is_said_to_be_right_as_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(deploy.__file__).parents[1] / "docs" / "edge-agent.md").read_text(encoding="utf-8")
    (tmp_path / "agent.toml").write_text(page.split("```toml")[1].split("```")[0])
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(app, ["check-config", "-c", "agent.toml"])
    assert f"$ edge-agent check-config -c agent.toml\n{found.output}" in page


def test_an_agent_without_its_file_is_not_started_again(tmp_path: Path) -> None:
    """The unit's Restart=always starts it again after every other status."""
    unit = (Path(deploy.__file__).parent / "systemd" / "edge-agent.service").read_text()
    (prevents,) = [line for line in unit.splitlines() if line.startswith("RestartPreventExitStatus=")]
    file = tmp_path / "missing.toml"
    command = [sys.executable, "-m", "edge_agent", "run", "-c", str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert str(ended.returncode) in prevents.partition("=")[2].split()
    assert ended.stderr.startswith(f"{file}: cannot be read: ")


def test_an_exported_record_names_the_mapping_that_made_it_and_survives_a_mapping_that_no_batch_can_hold(
    tmp_path: Path,
) -> None:
    buffer = open_buffer(tmp_path)
    mappings = ("", "buses@0a1b2c3d", "\x1b[2J")
    buffer.commit([pending_record(at)._replace(mapping=mapping) for at, mapping in enumerate(mappings, 1)], WALL_MS)
    buffer.close()
    lines = [json.loads(line) for line in command(tmp_path, "export").stdout.splitlines()]
    assert [(line["kind"], line.get("mapping")) for line in lines] == [
        ("position", None),
        ("position", "buses@0a1b2c3d"),
        ("raw", None),
    ]
