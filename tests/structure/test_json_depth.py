"""Who refuses what is no JSON refuses JSON that is too deep: `json.loads` says so with another error."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.structure.test_vocabulary import MODULES, PACKAGES


def refusals(tree: ast.AST) -> Iterator[tuple[int, set[str]]]:
    """The line of each `try` around `json.loads`, and the names of what it catches."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Try) and any("json.loads(" in ast.unparse(one) for one in node.body):
            caught = [handler.type for handler in node.handlers if handler.type is not None]
            yield node.lineno, {name.id for one in caught for name in ast.walk(one) if isinstance(name, ast.Name)}


def test_who_catches_a_value_error_of_json_catches_what_is_too_deep() -> None:
    shallow = [
        f"{path}:{line}"
        for path, tree in MODULES.items()
        if path.parts[0] in PACKAGES
        for line, names in refusals(tree)
        if names & {"ValueError", "JSONDecodeError"} and not names & {"RecursionError", "Exception"}
    ]
    assert shallow == [], "catch RecursionError too, or read it with telemetry.parse_json"
