"""The packages of the project, as its import contracts name them."""

import ast
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES: tuple[str, ...] = tuple(
    tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["root_packages"]
)


def statements(body: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """The statements of a body and of all in it, without their expressions and what is for type checkers only."""
    for node in body:
        if not for_type_checkers(node):
            yield node
            for part in ("body", "orelse", "handlers", "finalbody", "cases"):
                yield from statements(getattr(node, part, ()))


def for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
