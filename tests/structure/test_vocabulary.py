"""One word for one thing: the glossary holds against the code, and no public class name stands for two things."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES: tuple[str, ...] = tuple(
    tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["root_packages"]
)
GLOSSARY = ROOT / "docs" / "glossary.md"
MODULES = {
    path.relative_to(ROOT): ast.parse(path.read_text(encoding="utf-8"))
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
}

# A class name that stands twice on purpose, and why.
TWICE: dict[str, str] = {}


@cache
def classes() -> dict[str, list[Path]]:
    """Each public class at the top of a module, and the modules that define it."""
    found = defaultdict(list)
    for path, tree in MODULES.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(path)
    return dict(found)


@cache
def identifiers() -> set[str]:
    """Every name in the code: modules, classes, functions, attributes, parameters, and its texts of one word."""
    return {name for path, tree in MODULES.items() for name in (*path.parts, path.stem, *_names(tree))}


def former_keys(tree: ast.Module) -> set[ast.AST]:
    """The keys of settings as they were called once, which are there to be refused."""
    return {
        key
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == "RENAMED_KEYS"
        for key in getattr(node.value, "keys", ())
    }


def _names(tree: ast.Module) -> Iterator[str]:
    former = former_keys(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Constant() if node in former:
                continue
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield name
            case ast.Constant(value=str(text)) if " " not in text:
                yield text


def rows(heading: str) -> list[list[str]]:
    """The cells of the table under a heading of the glossary."""
    section = GLOSSARY.read_text(encoding="utf-8").split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_no_public_class_name_stands_for_two_things() -> None:
    twice = {name: paths for name, paths in classes().items() if len(paths) > 1 and name not in TWICE}
    assert twice == {}


def test_each_exception_is_still_needed() -> None:
    assert [name for name in TWICE if len(classes().get(name, [])) < 2] == []


def test_each_name_of_the_glossary_is_in_the_code() -> None:
    known = identifiers()
    named = {name for row in rows("Terms") for name in re.findall(r"`([^`]+)`", row[2])}
    assert named
    assert {name for name in named if not set(re.split(r"[^\w/-]+", name)) - {""} <= known} == set()


def test_each_term_stands_once_and_has_its_sentence() -> None:
    terms = [row[0] for row in rows("Terms")]
    assert len(terms) == len(set(terms)) > 50
    assert [row[0] for row in rows("Terms") if not row[1].endswith(".")] == []


@pytest.mark.parametrize("word", [row[0].strip("`") for row in rows("Words not used")] if GLOSSARY.exists() else [])
def test_a_word_that_was_replaced_is_not_a_name_in_the_code(word: str) -> None:
    offenders = [
        f"{path}: {name}"
        for path, tree in MODULES.items()
        for name in _names(tree)
        if word in {part.lower() for part in re.split(r"_|(?<=[a-z])(?=[A-Z])", name)}
    ]
    assert offenders == []
