"""How long a function and a module may be: modules are deep, and still read in one sitting."""

from __future__ import annotations

import ast
from functools import cache

from tests.structure.sources import PACKAGES, ROOT

MAX_FUNCTION_LINES = 80
MAX_MODULE_LINES = 650


@cache
def sources() -> dict[str, str]:
    """The text of each module of the packages, tests and benchmarks, by its path."""
    return {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for folder in (*PACKAGES, "benchmarks", "tests")
        for path in sorted((ROOT / folder).rglob("*.py"))
    }


def test_no_module_is_longer_than_the_limit() -> None:
    lines = {path: len(text.splitlines()) for path, text in sources().items()}
    assert {path: count for path, count in lines.items() if count > MAX_MODULE_LINES} == {}


def test_no_function_is_longer_than_the_limit() -> None:
    lengths = {
        f"{path}: {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for path, text in sources().items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {name: count for name, count in lengths.items() if count > MAX_FUNCTION_LINES} == {}
