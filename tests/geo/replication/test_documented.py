"""Every command, setting and metric of geo-replication stands in its documentation."""

from __future__ import annotations

from pathlib import Path

import pytest

from geo.replication import model
from geo.replication.cli import METRICS, app
from waybill.commands import SUBCOMMANDS
from waybill.settings import Settings

DOCS = Path(__file__).parents[3] / "docs"
TEXT = (DOCS / "replication.md").read_text() + (DOCS.parent / "deploy/local/topology.toml").read_text()


@pytest.mark.parametrize("metric", METRICS)
def test_a_metric_is_documented(metric: str) -> None:
    assert f"`{metric}`" in TEXT


@pytest.mark.parametrize(
    "command",
    [command.name or command.callback.__name__ for command in app.registered_commands if command.callback],
)
def test_a_topology_command_is_documented(command: str) -> None:
    assert f"`waybill topology {command}`" in TEXT or f"`waybill topology {command} " in TEXT


@pytest.mark.parametrize("command", ["up", "down", "status", "link"])
def test_a_stack_command_is_documented(command: str) -> None:
    assert command in SUBCOMMANDS
    assert f"`waybill {command}" in (DOCS / "local-stack.md").read_text()


def _settings() -> list[str]:
    models = [one for name, one in vars(model).items() if not name.startswith("_")]
    return sorted(
        {field for one in models if isinstance(one, type) and issubclass(one, Settings) for field in one.model_fields}
    )


@pytest.mark.parametrize("setting", _settings())
def test_a_setting_is_documented(setting: str) -> None:
    assert setting in TEXT
