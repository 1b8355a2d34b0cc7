"""What the packages show, and what the truth may not know."""

import ast
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("path", sorted(TRUTH.glob("*.py")), ids=lambda path: path.stem)
def test_the_truth_imports_nothing_that_it_judges(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            top = name.split(".")[0]
            assert top in ALLOWED | STANDARD | CONTRACTS | {"pathlib", "typing"}, f"{path.name} imports {name}"
            assert top != "simulator" or name.startswith("simulator.truth"), f"{path.name} imports {name}"
