"""With one extra installed every command runs, or says in a line which extra it needs."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.utils import canonicalize_name

from deploy.packages.wheels import ROOT, brought
from tests.cloud_jobs.billing.register.metered_lake import issued_lake
from tests.structure.sources import for_type_checkers, statements
from waybill.commands import EXIT_MISSING_EXTRA, PROGRAMS, SUBCOMMANDS

PACKAGES = frozenset(path.parent.name for path in ROOT.glob("*/__init__.py")) - {"tests", "benchmarks"}


@cache
def modules_brought(extra: str | None) -> frozenset[str]:
    return frozenset(
        module
        for module, distributions in _distributions_of_modules().items()
        if brought(extra) & {canonicalize_name(name) for name in distributions}
    )


def modules_hidden(extra: str | None) -> frozenset[str]:
    """The top-level modules that are installed here and that the extra does not bring."""
    return frozenset(_distributions_of_modules()) - modules_brought(extra) - PACKAGES


def imported(*roots: str) -> dict[str, set[str]]:
    """The foreign top-level modules that these modules of ours import, directly or not, each with who imports it."""
    waiting, seen, foreign = list(roots), set[str](), dict[str, set[str]]()
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        for name in (*_imports(module), *_packages_of(module)):
            top = name.partition(".")[0]
            if top in PACKAGES:
                waiting.append(name)
            elif top not in sys.stdlib_module_names:
                foreign.setdefault(top, set()).add(module)
    return foreign


@cache
def _distributions_of_modules() -> Mapping[str, list[str]]:
    return metadata.packages_distributions()


def _packages_of(module: str) -> Iterator[str]:
    parts = module.split(".")
    return (".".join(parts[:count]) for count in range(1, len(parts)))


@cache
def _imports(module: str) -> frozenset[str]:
    names: set[str] = set()
    for node in statements(_tree(module).body):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{module} imports relatively"
            names.add(node.module)
            for alias in node.names:
                names.add(_homes(node.module).get(alias.name, node.module))
                names |= {f"{node.module}.{alias.name}"} if _is_module(node.module, alias.name) else set()
    return frozenset(names)


@cache
def _homes(package: str) -> Mapping[str, str]:
    """Of a package whose names are loaded when they are asked for: the module of each."""
    return {
        alias.name: inner.module
        for node in _tree(package).body
        if for_type_checkers(node)
        for inner in ast.walk(node)
        if isinstance(inner, ast.ImportFrom) and inner.module
        for alias in inner.names
    }


def _tree(module: str) -> ast.Module:
    file = ROOT.joinpath(*module.split("."))
    file = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8") if file.is_file() else "")


def _is_module(package: str, name: str) -> bool:
    folder = ROOT.joinpath(*package.split("."))
    return (folder / f"{name}.py").is_file() or (folder / name / "__init__.py").is_file()


EXTRAS = [
    None,
    "edge",
    *(pytest.param(extra, marks=pytest.mark.nightly) for extra in ("gateway", "cloud", "simulator", "local")),
]
COMMANDS = PROGRAMS | {f"waybill {name}": command for name, command in SUBCOMMANDS.items()}

OPTIONAL = {
    "edge_agent.mapping.can_frames": "edge-can",
    "edge_agent.mapping.protobuf_formats": "edge-protobuf",
}
"""Modules for a setting that names the extra they need, if it is missing."""

STARTED = {
    "edge-agent": ["edge_agent.daemon"],
    "waybill up": ["deploy.local.links"],
    "waybill demo": ["deploy.local.links", "edge_agent.cli", "edge_agent.daemon", "gateway.cli", "cloud_jobs.__main__"],
    "waybill drill": ["deploy.local.links", "cloud_jobs.__main__"],
}
"""What a command starts as a process of its own."""

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


def test_without_an_extra_only_these_commands_explain_themselves() -> None:
    assert {words for words, ended in helps(None).items() if ended.status} == COMMANDS.keys() - {
        "edge-agent",
        "waybill alerts",
        "waybill canary",
        "waybill console",
        "waybill console-link",
        "waybill device",
        "waybill events",
        "waybill fleet",
        "waybill health",
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
    missing = {
        module: sorted(others)
        for module, by in foreign.items()
        if module not in modules_brought(command.extra)
        and (others := {one for one in by if module not in modules_brought(OPTIONAL.get(one))})
    }
    assert not missing, f"the extra {command.extra} does not bring {missing}"


SLOW = {"pandas", "pyspark", "reportlab"}
SPATIAL = {"shapely", "pyproj"}
LIST = """
import sys
from waybill.commands import waybill
for command in sys.argv[1:]:
    sys.argv[1:] = command.split()
    try:
        waybill()
    except SystemExit:
        pass
sys.stderr.write(" ".join(sys.modules))
"""


@pytest.mark.parametrize(
    ("commands", "slow"),
    [
        (["bill explain WB-EU-00000001 1"], SLOW),  # who explains measures again
        (["bill list", "bill show WB-EU-00000001", "reconcile --period 2026-03", "decisions list"], SLOW | SPATIAL),
    ],
)
def test_a_clerks_command_starts_without_what_takes_long_to_import(commands: list[str], slow: set[str]) -> None:
    # an error of the lake: all that reads one is imported by then
    started = [f"{command} --lake /nowhere" for command in commands]
    done = subprocess.run([sys.executable, "-c", LIST, *started], capture_output=True, check=True, text=True)
    assert done.stderr.count("no lake /nowhere") == len(commands)
    assert slow & {*done.stderr.split()} == set()


def test_what_is_counted_is_counted_without_geometry(tmp_path: Path) -> None:
    issued_lake(tmp_path / "lake")
    listing = [sys.executable, "-c", LIST, "reconcile --lake lake --period 2026-01"]
    done = subprocess.run(listing, capture_output=True, check=True, text=True, cwd=tmp_path)
    assert "equal" in done.stdout
    assert (SLOW | SPATIAL) & {*done.stderr.split()} == set()
