"""How long a function and a module may be, and how many lines of the packages say why."""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from functools import cache

from tests.structure.test_vocabulary import PACKAGES, ROOT

MAX_FUNCTION_LINES = 60
MAX_MODULE_LINES = 400
# The part of the lines that are comments never falls below this; the aim is two to five of a hundred.
LEAST_COMMENTS = 0.02

# A module that may be longer, how long at most, and why.
LONGER_MODULES: dict[str, tuple[int, str]] = {}


@cache
def sources() -> dict[str, str]:
    """The text of each module of the packages, tests and benchmarks, by its path."""
    return {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for folder in (*PACKAGES, "benchmarks", "tests")
        for path in sorted((ROOT / folder).rglob("*.py"))
    }


def comments_in(text: str) -> int:
    return sum(token.type == tokenize.COMMENT for token in tokenize.generate_tokens(io.StringIO(text).readline))


def test_no_module_is_longer_than_the_limit() -> None:
    lines = {path: len(text.splitlines()) for path, text in sources().items()}
    limits = {path: LONGER_MODULES.get(path, (MAX_MODULE_LINES, ""))[0] for path in lines}
    assert {path: count for path, count in lines.items() if count > limits[path]} == {}


def test_each_module_that_may_be_longer_has_its_reason() -> None:
    assert [path for path, (limit, why) in LONGER_MODULES.items() if not why or limit <= MAX_MODULE_LINES] == []


def test_each_module_that_may_be_longer_is_so() -> None:
    lines = {path: len(text.splitlines()) for path, text in sources().items()}
    assert [path for path in LONGER_MODULES if lines.get(path, 0) <= MAX_MODULE_LINES] == []


def test_no_function_is_longer_than_the_limit() -> None:
    lengths = {
        f"{path}: {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for path, text in sources().items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {name: count for name, count in lengths.items() if count > MAX_FUNCTION_LINES} == {}


def test_the_share_of_comments_in_the_packages_does_not_fall() -> None:
    lines, comments = Counter[str](), Counter[str]()
    for path, text in sources().items():
        package = path.partition("/")[0]
        if package in PACKAGES:
            lines[package] += len(text.splitlines())
            comments[package] += comments_in(text)
    for package in PACKAGES:
        share = comments[package] / lines[package]
        sys.stdout.write(f"{package}: {comments[package]} of {lines[package]} lines are comments, {share:.1%}\n")
    assert comments.total() >= LEAST_COMMENTS * lines.total()
