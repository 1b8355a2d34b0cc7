"""The page of the architecture says what the code is: imports, and the paths of a record and of its acknowledgement."""

from __future__ import annotations

import ast
import re
import runpy
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import grimp
import pytest

from tests.structure.ack_path import modules_of_two_acknowledgements
from tests.structure.test_vocabulary import MODULES

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
SCRIPT = runpy.run_path(str(ROOT / "docs" / "pictures" / "architecture.py"))
GRAPH = grimp.build_graph(*SCRIPT["PACKAGES"])
TREES = {".".join(path.with_suffix("").parts).removesuffix(".__init__"): tree for path, tree in MODULES.items()}
PATHS = ("The path of one record", "The path of one acknowledgement back")
ACK_MODULES_AT_MOST = 30


class Step(NamedTuple):
    """A row of a path: a module and what of it the record meets, and how it came there from the row before."""

    module: str
    names: tuple[str, ...]
    reached_by: str


def steps(heading: str) -> list[Step]:
    """The rows of the table under a heading."""
    section = PAGE.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    found = []
    for module_and_names, reached_by, *_ in rows:
        module, *names = re.findall(r"`([^`]+)`", module_and_names)
        found.append(Step(module, tuple(names), reached_by.strip()))
    return found


def names_in(tree: ast.AST) -> set[str]:
    """What a module defines: functions, classes and constants, and what a class defines as `Class.name`."""
    found = set()
    for node in getattr(tree, "body", []):
        match node:
            case ast.ClassDef(name=name):
                found |= {name} | {f"{name}.{inner}" for inner in names_in(node)}
            case ast.FunctionDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
            case ast.Assign(targets=[ast.Name(id=name)]):
                found.add(name)
    return found


def texts_near(module: str) -> str:
    """The names and texts of a module and of those that it imports directly."""
    near = {module} | GRAPH.find_modules_directly_imported_by(module)
    return "\n".join(ast.unparse(TREES[name]) for name in sorted(near) if name in TREES)


def imports(importer: str, imported: str) -> bool:
    """Whether a module imports another, itself or by a name of the package around it."""
    package = imported.rpartition(".")[0]
    by_package = package in GRAPH.modules and GRAPH.direct_import_exists(importer=importer, imported=package)
    return GRAPH.direct_import_exists(importer=importer, imported=imported) or (
        by_package and GRAPH.direct_import_exists(importer=package, imported=imported)
    )


def is_connected(before: str, step: Step) -> bool:
    """Whether the code connects two rows as the page says."""
    quoted = re.findall(r"`([^`]+)`", step.reached_by)
    words = [word for text in quoted for word in text.split(".")]
    match step.reached_by.partition("`")[0].strip():
        case "calls":
            return imports(before, step.module)
        case "called by":
            return imports(step.module, before)
        case "passed by":
            way = [before, *quoted, step.module]
            return len(way) > 2 and all(imports(one, other) or imports(other, one) for one, other in pairwise(way))
        case "MQTT" | "Pulsar" | "Delta" | "Spark":
            near = [texts_near(before), texts_near(step.module)]
            return bool(words) and all(re.search(rf"\b{re.escape(word)}\b", text) for word in words for text in near)
    return False


def test_the_drawing_and_the_table_of_imports_are_those_of_the_code() -> None:
    assert SCRIPT["renewed"](PAGE) == PAGE, f"imports changed: run `{SCRIPT['COMMAND']}` and commit the page"


@pytest.mark.parametrize("heading", PATHS)
def test_each_module_of_a_path_has_what_the_page_names(heading: str) -> None:
    missing = [
        f"{step.module}:{name}"
        for step in steps(heading)
        for name in step.names
        if step.module not in TREES or name not in names_in(TREES[step.module])
    ]
    assert len(steps(heading)) > 5
    assert missing == []


@pytest.mark.parametrize("heading", PATHS)
def test_each_step_of_a_path_is_reached_as_the_page_says(heading: str) -> None:
    found = steps(heading)
    assert [
        f"{before.module} -> {step.module}: {step.reached_by}"
        for before, step in pairwise(found)
        if not is_connected(before.module, step)
    ] == []


def test_an_acknowledgement_runs_through_the_modules_of_the_page_and_no_others(tmp_path: Path) -> None:
    heading = "The path of one acknowledgement back"
    first, modules = modules_of_two_acknowledgements(tmp_path)
    assert first == modules
    assert modules == {step.module for step in steps(heading)}
    assert len(modules) <= ACK_MODULES_AT_MOST
    said = re.search(r"These are (\d+) modules, about ([\d,]+) lines", PAGE)
    assert said is not None
    lines = sum(len((ROOT / f"{module.replace('.', '/')}.py").read_text("utf-8").splitlines()) for module in modules)
    assert int(said[1]) == len(modules)
    assert int(said[2].replace(",", "")) == pytest.approx(lines, rel=0.05)
