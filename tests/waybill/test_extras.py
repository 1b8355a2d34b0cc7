"""With one extra installed every command runs, or says in a line which extra it needs."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from typing import NamedTuple

import pytest

from deploy.wheel import ROOT
from tests.waybill.extras import imported, modules_brought, modules_hidden
from waybill.commands import EXIT_MISSING_EXTRA, PROGRAMS, SUBCOMMANDS

EXTRAS = [
    None,
    "edge",
    *(pytest.param(extra, marks=pytest.mark.nightly) for extra in ("gateway", "cloud", "simulator", "local")),
]
COMMANDS = PROGRAMS | {f"waybill {name}": command for name, command in SUBCOMMANDS.items()}

STARTED = {
    "edge-agent": ["edge_agent.daemon"],
    "waybill up": ["deploy.local.links"],
    "waybill demo": [
        "deploy.local.links",
        "edge_agent.cli",
        "edge_agent.daemon",
        "gateway.cli",
        "cloud_jobs.__main__",
    ],
    "waybill drill": ["deploy.local.links", "cloud_jobs.__main__"],
}
"""What a command starts as a process of its own."""

ON_DEMAND = {"edge-agent": {"pulsar"}}
"""What only a setting asks for, and `check-config` names where it is missing: an uplink of kind "pulsar"."""


HIDE = """
import json, sys
hidden = set(json.loads(sys.argv[1]))

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
from waybill import commands
"""

WALK = (
    HIDE
    + """
import contextlib, io
import typer

def run(words):
    sys.argv = [*words, "--help"]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            getattr(commands, words[0].replace("-", "_"))()
            status = 0
        except SystemExit as end:
            status = end.code or 0
    return {"words": words, "status": status, "out": out.getvalue(), "err": err.getvalue()}

def walk(words, command):
    done = run(words)
    yield done
    if done["status"] == 0 and isinstance(app := command.load(), typer.Typer):
        yield from inner(words, typer.main.get_command(app))

def inner(words, group):
    for name, command in getattr(group, "commands", {}).items():
        yield run([*words, name])
        yield from inner([*words, name], command)

done = [run(["waybill"])]
for name, command in commands.PROGRAMS.items():
    done += walk([name], command)
for name, command in commands.SUBCOMMANDS.items():
    done += walk(["waybill", name], command)
print(json.dumps(done))
"""
)


class Ended(NamedTuple):
    """How `COMMAND --help` ended."""

    status: int
    out: str
    err: str


def hidden(extra: str | None) -> str:
    return json.dumps(sorted(modules_hidden(extra)))


@cache
def helps(extra: str | None) -> dict[str, Ended]:
    walk = subprocess.run(
        [sys.executable, "-c", WALK, hidden(extra)], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert walk.returncode == 0, walk.stderr
    return {" ".join(one["words"]): Ended(one["status"], one["out"], one["err"]) for one in json.loads(walk.stdout)}


@pytest.mark.parametrize("extra", EXTRAS)
def test_every_command_explains_itself_or_says_which_extra_it_needs(extra: str | None) -> None:
    for words, ended in helps(extra).items():
        needed = next((command.extra for name, command in COMMANDS.items() if words.startswith(name)), None)
        if needed in (None, extra) or extra == "local":
            assert ended.status == 0, f"extra {extra}: {words} --help: {ended.err}"
        assert ended.status in (0, EXIT_MISSING_EXTRA), words
        if ended.status == 0:
            assert "Usage" in ended.out
        else:
            assert ended.out == ""
            assert ended.err.count("\n") == 1, ended.err
            assert ended.err.startswith(f"{words} needs the package "), ended.err
            assert f"install the extra {needed} (docs/install.md)" in ended.err


def test_without_an_extra_only_the_agent_the_device_registry_and_the_canary_explain_themselves() -> None:
    assert {words for words, ended in helps(None).items() if ended.status} == COMMANDS.keys() - {
        "edge-agent",
        "waybill canary",
        "waybill device",
    }


def test_an_agent_without_its_extra_does_not_become_a_daemon() -> None:
    words = ["edge-agent", "run", "--config", str(ROOT / "pyproject.toml")]
    ended = subprocess.run(
        [sys.executable, "-c", f"{HIDE}\nsys.argv = {words!r}\ncommands.edge_agent()", hidden(None)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (
        EXIT_MISSING_EXTRA,
        "edge-agent needs the package paho: install the extra edge (docs/install.md)\n",
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_all_that_a_command_can_import_comes_with_its_extra(name: str) -> None:
    command = COMMANDS[name]
    foreign = imported(command.target.partition(":")[0], *STARTED.get(name, ()))
    optional = ON_DEMAND.get(name, set())
    missing = {module: sorted(by) for module, by in foreign.items() if module not in modules_brought(command.extra)}
    assert set(missing) <= optional, f"the extra {command.extra} does not bring {missing}"
