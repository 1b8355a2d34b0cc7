"""`--help` of every command says what its source says: nothing in brackets is taken for markup."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from cloud_jobs.__main__ import app as cloud_jobs
from edge_agent.cli import app as edge_agent
from gateway.cli import app as gateway
from simulator.__main__ import app as simulator
from waybill.commands import SUBCOMMANDS, command_line

APPS = {"cloud-jobs": cloud_jobs, "edge-agent": edge_agent, "fleet-gateway": gateway, "fleet-simulator": simulator} | {
    f"waybill {name}": command_line(SUBCOMMANDS, [name], "Waybill.") for name in SUBCOMMANDS
}


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("name", APPS)
def test_what_stands_in_brackets_is_shown(name: str) -> None:
    for path, command in commands(typer.main.get_command(APPS[name])):
        shown = words(CliRunner().invoke(APPS[name], [*path, "--help"], terminal_width=200).output)
        texts = [command.help or "", *(getattr(parameter, "help", None) or "" for parameter in command.params)]
        for bracketed in (found for text in texts for found in re.findall(r"\[[^\]]*\]", text)):
            assert words(bracketed) in shown, f"{name} {' '.join(path)} loses {bracketed}"


@pytest.mark.parametrize("name", APPS)
def test_the_help_of_each_command_has_an_example_with_its_own_options(name: str) -> None:
    program, _, only = name.partition(" ")
    for path, command in commands(typer.main.get_command(APPS[name])):
        if getattr(command, "commands", {}) or (only and path[:1] != (only,)):
            continue
        spoken = " ".join((program, *path))
        example = re.search(rf"Example: {re.escape(spoken)}(?=\s|$)(.*)", words(command.help or ""))
        assert example, f"{spoken} --help has no example"
        own = {option for parameter in command.params for option in parameter.opts}
        assert set(re.findall(r"(?<=\s)--?\w[\w-]*", example[1])) <= own, spoken
        required = {parameter.opts[-1] for parameter in command.params if parameter.required and parameter.opts}
        assert {option for option in required if option.startswith("--")} <= set(example[1].split()), spoken


@pytest.mark.parametrize("name", ["ingest", "usage", "geofence", "proximity", "maintain", "status"])
def test_the_help_of_a_command_on_the_lake_says_what_each_exit_status_is_for(name: str) -> None:
    shown = words(CliRunner().invoke(cloud_jobs, [name, "--help"], terminal_width=200).output)
    assert [
        text for text in ("Exit status: 0", "1 when", "75 when", "78 for wrong settings") if text not in shown
    ] == []


@pytest.mark.parametrize("name", ["waybill", "edge-agent", "fleet-gateway", "cloud-jobs", "fleet-simulator"])
def test_a_program_says_its_version_and_without_arguments_what_it_can_do(name: str) -> None:
    app = APPS.get(name) or command_line(SUBCOMMANDS, [], "Waybill.")
    assert CliRunner().invoke(app, ["--version"]).output == f"{name} {version('fleet-waybill')}\n"
    assert "Commands:" in CliRunner().invoke(app, []).output
