"""What the project weighs, each number with its limit. Statements leave out imports and docstrings."""

import ast
import json
import re
import resource
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

from tests.structure.sources import ROOT


def tracked(*patterns: str) -> list[str]:
    """The files of the repository with these names."""
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def is_statement(node: ast.AST) -> bool:
    """Whether a node counts: no import, no docstring."""
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return isinstance(node, ast.stmt) and not isinstance(node, ast.Import | ast.ImportFrom) and not is_text


def size(names: Iterable[str]) -> tuple[int, int, int]:
    """Statements, modules and lines of these files."""
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in names]
    statements = sum(is_statement(node) for text in texts for node in ast.walk(ast.parse(text)))
    return statements, len(texts), sum(text.count("\n") for text in texts)


def processor_s(*words: str) -> float:
    """The processor time of a command in seconds: the least of three runs."""
    found = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([Path(sys.executable).parent / words[0], *words[1:]], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(found)


def rows() -> list[tuple[str, float, float]]:
    """Each number: what it is, how much, and its limit."""
    product = size(name for name in tracked("*.py") if not name.startswith(("tests/", "benchmarks/")))
    tests, benchmarks = size(tracked("tests/*.py")), size(tracked("benchmarks/*.py"))
    pages = tracked("README.md", "docs/*.md")
    words = {name: len((ROOT / name).read_text(encoding="utf-8").split()) for name in pages}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    roots = len(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    ways = subprocess.run(
        [sys.executable, "-m", "tests.structure.ways"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    ran = json.loads(re.findall(r"^\{.*\}$", ways.stdout, re.MULTILINE)[-1])
    return [
        ("product: statements", product[0], 43_000),
        ("product: modules", product[1], 520),
        ("product: lines", product[2], 92_000),
        ("tests: statements", tests[0], 36_000),
        ("tests: lines", tests[2], 66_000),
        ("benchmarks: lines", benchmarks[2], 4_500),
        ("pages: words", sum(words.values()), 75_000),
        ("longest page: words", max(words.values()), 2_500),
        ("import roots of the wheel", roots, 8),
        ("modules on the way of an acknowledgement", ran["acknowledgement"], 35),
        ("modules on the way from a fix to an invoice line", ran["fix to invoice line"], 80),
        ("modules on the way from a revocation to the end of a session", ran["revoke to session end"], 30),
        ("`waybill --help`: s of processor", processor_s("waybill", "--help"), 0.15),
        ("`edge-agent --version`: s of processor", processor_s("edge-agent", "--version"), 0.4),
    ]


def main() -> int:
    """Print the table; 1 where a number is above its limit."""
    found = rows()
    for name, number, limit in found:
        shown = f"{number:,.3f}" if isinstance(number, float) else f"{number:,}"
        line = f"{name:<64}{shown:>10} of {limit:>8,}  {'' if number <= limit else 'too much'}"
        sys.stdout.write(f"{line.rstrip()}\n")
    return int(any(number > limit for _, number, limit in found))


if __name__ == "__main__":
    sys.exit(main())
