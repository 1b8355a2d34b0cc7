"""Each law of `tests/LAWS.md` has witnesses that exist, and its fast one is no nightly test alone."""

import ast
import re
from functools import cache

from tests.structure.sources import ROOT

WITNESS = re.compile(r"`(tests/[\w/]+\.py)`(?: `(\w+)`)?")


@cache
def names_of(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    return defined | {target.id for target in targets if isinstance(target, ast.Name)}


def test_each_witness_of_a_law_is_there() -> None:
    page = (ROOT / "tests" / "LAWS.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith("| law ")]
    missing = []
    for row in rows:
        witnesses = WITNESS.findall(row)
        if not witnesses:
            missing.append(row)
        missing += [
            f"{path} {name}"
            for path, name in witnesses
            if not (ROOT / path).is_file() or (name and name not in names_of(path))
        ]
    assert len(rows) > 100
    assert missing == []
