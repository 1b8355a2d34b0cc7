"""One module opens clients of Pulsar's brokers, so that token, TLS and time-outs are the same everywhere."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.structure.test_vocabulary import MODULES, ROOT

OPENER = Path("waybill/pulsar/pulsar_client.py")
TRIED_OUT = {
    path.relative_to(ROOT): ast.parse(text)
    for folder in ("benchmarks", "tests")
    for path in (ROOT / folder).rglob("*.py")
    if "pulsar" in (text := path.read_text(encoding="utf-8"))
}


def opened_in(tree: ast.Module) -> set[int]:
    """The lines in which a module makes a client of the package `pulsar` itself, or takes the class by its name."""
    lines = set()
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="pulsar"), attr="Client")):
                lines.add(node.lineno)
            case ast.ImportFrom(module="pulsar", names=names) if any(alias.name == "Client" for alias in names):
                lines.add(node.lineno)
            case ast.Import(names=names) if any(alias.name == "pulsar" and alias.asname for alias in names):
                lines.add(node.lineno)
            case _:
                pass
    return lines


def test_a_client_is_found_in_each_form_that_it_may_be_made_in() -> None:
    forms = ["pulsar.Client(url)", "from pulsar import Client", "from pulsar import Client as C", "import pulsar as p"]
    assert all(opened_in(ast.parse(form)) == {1} for form in forms)
    assert opened_in(ast.parse("import pulsar\ndef it(client: pulsar.Client): raise pulsar.Timeout")) == set()


def test_every_client_is_opened_by_the_one_opener() -> None:
    assert {path for path, tree in {**MODULES, **TRIED_OUT}.items() if opened_in(tree)} == {OPENER}
