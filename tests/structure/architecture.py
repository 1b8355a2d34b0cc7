"""Packages and imports of `docs/architecture.md`, from the code: `python -m tests.structure.architecture`.

The page keeps what stands outside of the two marks. A structure test compares what stands between them with the code.
"""

from __future__ import annotations

import ast
import re

import grimp

from tests.structure.sources import PACKAGES, ROOT

PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- made from the code: begin -->", "<!-- made from the code: end -->"
COMMAND = "python -m tests.structure.architecture"


def sentences() -> dict[str, str]:
    """Each package with the first sentence of its docstring."""
    found = {}
    for top in PACKAGES:
        for file in sorted((ROOT / top).rglob("__init__.py")):
            text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
            # the sentence may go on in the next line
            first = re.match(r".*?[.?](?=\n|$)", text, re.DOTALL)
            found[".".join(file.parent.relative_to(ROOT).parts)] = " ".join(first[0].split()) if first else ""
    return found


def imports(graph: grimp.ImportGraph, packages: set[str]) -> dict[str, set[str]]:
    """The packages that the modules of each package import; a module belongs to the innermost package around it."""
    found: dict[str, set[str]] = {package: set() for package in packages}
    for module in graph.modules:
        home = _home(module, packages)
        found[home] |= {_home(other, packages) for other in graph.find_modules_directly_imported_by(module)} - {home}
    return found


def _home(module: str, packages: set[str]) -> str:
    while module not in packages:
        module = module.rpartition(".")[0]
    return module


def arrows(edges: dict[str, set[str]]) -> dict[str, set[str]]:
    """The imports between top packages, without those that a way through another package says already."""
    tops: dict[str, set[str]] = {top: set() for top in PACKAGES}
    for package, targets in edges.items():
        top = package.partition(".")[0]
        tops[top] |= {target.partition(".")[0] for target in targets} - {top}
    return {
        top: {target for target in targets if not any(target in tops[other] for other in targets)}
        for top, targets in tops.items()
    }


def drawn() -> str:
    """What stands between the marks: a drawing of the top packages, then every package in a table."""
    said = sentences()
    edges = imports(grimp.build_graph(*PACKAGES), set(said))
    lines = ["```mermaid", "graph TD"]
    lines += [f"    {top} --> {target}" for top, targets in sorted(arrows(edges).items()) for target in sorted(targets)]
    lines += ["```", "", "| package | what it is |", "|---|---|"]
    lines += [f"| `{package}` | {said[package]} |" for package in sorted(said)]
    return "\n".join(lines)


def renewed(page: str) -> str:
    """The page with what the code says now between the marks."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{drawn()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
