"""What each extra brings, by what is declared, and what each command imports, by its source."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import metadata

from packaging.utils import canonicalize_name

from deploy.wheel import ROOT, brought

PACKAGES = frozenset(path.parent.name for path in ROOT.glob("*/__init__.py")) - {"tests", "benchmarks"}


@cache
def modules_brought(extra: str | None) -> frozenset[str]:
    """The top-level modules of those distributions."""
    return frozenset(
        module
        for module, distributions in _distributions_of_modules().items()
        if brought(extra) & {canonicalize_name(name) for name in distributions}
    )


def modules_hidden(extra: str | None) -> frozenset[str]:
    """The top-level modules that are installed here and that the extra does not bring."""
    return frozenset(_distributions_of_modules()) - modules_brought(extra) - PACKAGES


def imported(*roots: str) -> dict[str, set[str]]:
    """The foreign top-level modules that these modules of ours import, directly or not, each with who imports it."""
    waiting, seen, foreign = list(roots), set[str](), dict[str, set[str]]()
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        for name in (*_imports(module), *_packages_of(module)):
            top = name.partition(".")[0]
            if top in PACKAGES:
                waiting.append(name)
            elif top not in sys.stdlib_module_names:
                foreign.setdefault(top, set()).add(module)
    return foreign


@cache
def _distributions_of_modules() -> Mapping[str, list[str]]:
    return metadata.packages_distributions()


def _packages_of(module: str) -> Iterator[str]:
    parts = module.split(".")
    return (".".join(parts[:count]) for count in range(1, len(parts)))


@cache
def _imports(module: str) -> frozenset[str]:
    names: set[str] = set()
    for node in _executed(_tree(module)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{module} imports relatively"
            names.add(node.module)
            for alias in node.names:
                names.add(_homes(node.module).get(alias.name, node.module))
                names |= {f"{node.module}.{alias.name}"} if _is_module(node.module, alias.name) else set()
    return frozenset(names)


@cache
def _homes(package: str) -> Mapping[str, str]:
    """Of a package whose names are loaded when they are asked for: the module of each."""
    return {
        alias.name: inner.module
        for node in ast.walk(_tree(package))
        if _for_type_checkers(node)
        for inner in ast.walk(node)
        if isinstance(inner, ast.ImportFrom) and inner.module
        for alias in inner.names
    }


@cache
def _tree(module: str) -> ast.Module:
    file = ROOT.joinpath(*module.split("."))
    file = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8") if file.is_file() else "")


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """Every node but those that only a type checker reads."""
    if _for_type_checkers(node):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _executed(child)


def _for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _is_module(package: str, name: str) -> bool:
    folder = ROOT.joinpath(*package.split("."))
    return (folder / f"{name}.py").is_file() or (folder / name / "__init__.py").is_file()
