"""One word for one thing: the glossary holds against the code, and no public class name stands for two things.

The words that are not used are looked for in whatever a reader reads: names, texts, docstrings, comments, settings,
pages, the changelog and tests.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

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

# A file that needs a word which is not used, and why.
NEEDED: dict[tuple[str, str], str] = {
    ("cloud_jobs/jobs.py", "stage"): "Spark's name for tasks that run side by side",
    ("tests/cloud_jobs/test_still_computing.py", "stage"): "Spark's name for tasks that run side by side",
    ("cloud_jobs/maintenance/rewriting.py", "tell"): "a stream's name for where its writer is",
    ("waybill/record/ack.py", "tell"): "msgpack's name for where its reader is",
    ("waybill/record/layout.py", "tell"): "msgpack's name for where its reader is",
    ("waybill/record/wire.py", "tell"): "msgpack's name for where its reader is",
    ("benchmarks/gateway/speed.py", "unnamed"): "Java's name for all modules without one",
    ("deploy/local/pulsar.py", "unnamed"): "Java's name for all modules without one",
    ("tests/structure/test_renamed_keys.py", "thin"): "the former names of settings, each of which is refused",
}
TEMPLATES = {".toml", ".sh", ".service", ".j2"}


class Word(NamedTuple):
    """A word that is not used: its forms, and whether names alone have to do without them."""

    word: str
    forms: tuple[str, ...]
    in_names: bool


class Passage(NamedTuple):
    """A name, a text or a paragraph, and where it stands."""

    path: str
    line: int
    text: str
    is_name: bool


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
    """The cells of the tables under a heading of the glossary."""
    section = GLOSSARY.read_text(encoding="utf-8").split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    heads = ("|---", "| term |", "| word |")
    lines = [line for line in section.splitlines() if line.startswith("|") and not line.startswith(heads)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_no_public_class_name_stands_for_two_things() -> None:
    twice = {name: paths for name, paths in classes().items() if len(paths) > 1}
    assert twice == {}


def test_each_name_of_the_glossary_is_in_the_code() -> None:
    known = identifiers()
    named = {name for row in rows("Terms") for name in re.findall(r"`([^`]+)`", row[2])}
    assert named
    assert {name for name in named if not set(re.split(r"[^\w/-]+", name)) - {""} <= known} == set()


def test_each_term_stands_once_and_has_its_sentence() -> None:
    terms = [row[0] for row in rows("Terms")]
    assert len(terms) == len(set(terms)) > 50
    assert [row[0] for row in rows("Terms") if not row[1].endswith(".")] == []


def plain(text: str) -> str:
    """The words of a text or name in lower case: `set_aside`, `setAside` and `Set aside` are the same."""
    return " ".join(re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", text)).lower()


def unused_words() -> list[Word]:
    """The rows of the glossary's table of words that are not used."""
    made = []
    for word, inflections, where, _ in rows("Words not used"):
        forms = (word.strip("`"), *filter(None, (form.strip(" `") for form in inflections.split(","))))
        assert where in {"names", "everywhere"}, f"{word}: {where}"
        made.append(Word(forms[0], forms, where == "names"))
    return made


@cache
def passages() -> list[Passage]:
    """Whatever a reader reads of the project."""
    found: list[Passage] = []
    for folder in (*PACKAGES, "benchmarks", "docs", "tests"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path == Path(__file__):  # it names words to look for
                continue
            if path.suffix == ".py":
                found += _in_python(path)
            elif path.suffix in {*TEMPLATES, ".md"}:
                found += _in_text(path)
    for name in ("README.md", "CHANGELOG.md", "Makefile", "pyproject.toml"):
        found += _in_text(ROOT / name)
    return found


def _in_python(path: Path) -> Iterator[Passage]:
    where, source = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    former = former_keys(tree)
    yield Passage(where, 1, path.stem, is_name=True)
    for node in ast.walk(tree):
        match node:
            case ast.Constant() if node in former:
                continue
            case ast.Constant(value=str(text)):
                yield Passage(where, node.lineno, text, is_name=" " not in text)
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield Passage(where, node.lineno, name, is_name=True)
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
                yield Passage(where, node.lineno, name, is_name=True)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Passage(where, token.start[0], token.string, is_name=False)


def _in_text(path: Path) -> Iterator[Passage]:
    text, line = path.read_text(encoding="utf-8"), 1
    for paragraph in re.split(r"(?<=\n\n)", text):
        if path == GLOSSARY and paragraph.startswith("| word |"):
            return
        yield Passage(path.relative_to(ROOT).as_posix(), line, paragraph, is_name=False)
        line += paragraph.count("\n")


@cache
def uses() -> dict[str, list[Passage]]:
    """Where each word that is not used is used all the same."""
    of_form = {form: word for word in unused_words() for form in word.forms}
    pattern = re.compile(rf"\b(?:{'|'.join(map(re.escape, of_form))})\b")
    found = defaultdict(list)
    for passage in passages():
        for word in {of_form[form] for form in pattern.findall(plain(passage.text))}:
            if passage.is_name or not word.in_names:
                found[word.word].append(passage)
    return dict(found)


@pytest.mark.parametrize("word", [word.word for word in unused_words()])
def test_a_word_that_was_replaced_is_not_used(word: str) -> None:
    offenders = [
        f"{passage.path}:{passage.line}: {' '.join(passage.text.split())[:100]}"
        for passage in uses().get(word, ())
        if (passage.path, word) not in NEEDED
    ]
    assert offenders == []


def test_each_file_that_needs_a_word_uses_it() -> None:
    assert [key for key in NEEDED if key[0] not in {passage.path for passage in uses().get(key[1], ())}] == []


def test_a_word_is_found_in_each_spelling() -> None:
    assert {plain(text) for text in ("set_aside", "setAside", "SetAside", "Set aside", "SET ASIDE")} == {"set aside"}


def test_each_word_that_is_not_used_stands_once() -> None:
    forms = [form for word in unused_words() for form in word.forms]
    assert sorted({form for form in forms if forms.count(form) > 1}) == []
