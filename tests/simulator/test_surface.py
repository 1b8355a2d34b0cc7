"""What the packages show, and what the truth may not know."""

import ast
from pathlib import Path

import pytest

import simulator
from simulator import truth

TRUTH = Path(truth.__file__).parent
ALLOWED = {"simulator", "geographiclib"}
STANDARD = {
    "base64",
    "bisect",
    "collections",
    "datetime",
    "decimal",
    "fractions",
    "functools",
    "itertools",
    "json",
    "math",
}
CONTRACTS = {"tomllib", "zoneinfo"}


@pytest.mark.parametrize("package", [simulator, truth])
def test_what_is_shown_is_sorted_and_there(package: object) -> None:
    names = package.__all__  # type: ignore[attr-defined]
    assert names == sorted(names)
    assert all(hasattr(package, name) for name in names)


@pytest.mark.parametrize("path", sorted(TRUTH.glob("*.py")), ids=lambda path: path.stem)
def test_the_truth_imports_nothing_that_it_judges(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            top = name.split(".")[0]
            assert top in ALLOWED | STANDARD | CONTRACTS | {"pathlib", "typing"}, f"{path.name} imports {name}"
            assert top != "simulator" or name.startswith("simulator.truth"), f"{path.name} imports {name}"
