"""Settings, the commands that need no server, and the page that explains them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from pydantic import BaseModel
from typer.testing import CliRunner

from deploy.local import free_port
from gateway import GatewaySettings
from gateway.cli import app
from gateway.status import Status
from gateway.tally import Tally
from tests.gateway.strategies import settings

MINIMAL = """
name = "gateway-eu-1"
region = "eu"
[mqtt]
host = "127.0.0.1"
[pulsar]
service_url = "pulsar://127.0.0.1:6650"
"""
PAGE = Path(__file__).parents[2] / "docs" / "gateway.md"


def run(command: str, config: Path) -> Any:
    return CliRunner().invoke(app, [command, "--config", str(config)])


def test_a_minimal_configuration_is_fine(tmp_path: Path) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text(MINIMAL, encoding="utf-8")
    checked = run("check-config", config)
    assert checked.exit_code == 0
    assert "gateway-eu-1 of region eu" in checked.output


def test_the_topics_are_those_of_the_region() -> None:
    assert settings().topic("batches") == "persistent://fleet/telemetry-eu/batches"


def test_a_wrong_key_is_named_with_the_nearest_right_one(tmp_path: Path) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text(MINIMAL.replace("host =", "hots ="), encoding="utf-8")
    checked = run("check-config", config)
    assert checked.exit_code == 2
    assert "did you mean 'host'?" in checked.output
    assert "mqtt.host: Field required" in checked.output


def test_the_example_in_the_page_is_a_configuration(tmp_path: Path) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text(PAGE.read_text(encoding="utf-8").split("```toml")[1].split("```")[0], encoding="utf-8")
    assert run("check-config", config).exit_code == 0


def test_a_gateway_that_does_not_run_has_no_status(tmp_path: Path) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text(f"{MINIMAL}[observe]\nport = {free_port()}\n", encoding="utf-8")
    asked = run("status", config)
    assert asked.exit_code == 1
    assert "no gateway answers" in asked.output


def keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    found = []
    for name, field in model.model_fields.items():
        inner = [part for part in (field.annotation, *getattr(field.annotation, "__args__", ())) if is_model(part)]
        found += keys(inner[0], f"{prefix}{name}.") if inner else [f"{prefix}{name}"]
    return found


def is_model(part: object) -> bool:
    return isinstance(part, type) and issubclass(part, BaseModel)


def metric_names(registry: CollectorRegistry) -> list[str]:
    return [metric.name for metric in registry.collect()]


@pytest.mark.parametrize("name", [*keys(GatewaySettings), *Status.model_fields, *metric_names(Tally().registry)])
def test_every_setting_status_and_metric_is_explained(name: str) -> None:
    assert f"`{name}" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("command", ["run", "check-config", "status"])
def test_every_command_is_explained(command: str) -> None:
    assert f"`fleet-gateway {command}" in PAGE.read_text(encoding="utf-8")
