"""Every command of docs/connect.md prints what stands below it. Those for a broker run in tests/system."""

import os
import subprocess
import sys
from pathlib import Path

from edge_agent.mapping.settings import preset_names
from tests.edge_agent.mapping.connect_page import COMMANDS, PAGE, SETTINGS


def test_the_commands_of_the_page_print_what_stands_below_them(tmp_path: Path) -> None:
    (tmp_path / "agent.toml").write_text(SETTINGS)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    local = [(command, output) for command, output in COMMANDS if not command.startswith("mosquitto_pub ")]
    assert len(local) >= 8
    for command, output in local:
        if command.startswith("cat "):
            (tmp_path / command.removeprefix("cat ")).write_text(output)
        ran = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert ran.stdout == output, f"{command}\n{ran.stderr}"


def test_the_page_has_each_preset() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [name for name in preset_names() if f"`{name}`" not in text] == []
