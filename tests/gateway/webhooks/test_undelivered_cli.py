"""Commands for what no webhook took, as far as they need no cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.webhooks.cli import app


@pytest.mark.parametrize("command", ["list", "retry", "discard"])
def test_settings_that_are_not_there_are_78(tmp_path: Path, command: str) -> None:
    words = ["undelivered", command, "--config", str(tmp_path / "none.toml"), "--webhook", "ops"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 78
    assert "none.toml" in done.output


def test_nothing_is_discarded_that_is_not_named(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["undelivered", "discard", "--config", str(tmp_path / "none.toml")])
    assert done.exit_code == 2
    assert "--webhook or --key" in done.output
