"""MQTT topics stand in one module: no other one builds or takes apart a topic by hand."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.structure.test_vocabulary import MODULES, ROOT
from waybill.record import DeviceChannel, EnrolmentChannel, device_topic, enrolment_rule, shared_filter

HOME = Path("waybill/record/mqtt_topics.py")
TOPIC = re.compile(r"\bwaybill/|\bvehicle/|\$share\b|^/(batch|ack|config|config-result)$")
BENCHMARKS = {
    path.relative_to(ROOT): ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "benchmarks").rglob("*.py")
}
DOCUMENTED = re.compile(r"`([^`\s]*waybill/(?:enrol/)?1/[^`\s]*)`")


def texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of a module's strings, parts of f-strings too, without docstrings: no expression uses those."""
    unused = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or id(node) in unused:
            continue
        if isinstance(node.value, bytes):
            yield node.lineno, node.value.decode("latin-1")
        elif isinstance(node.value, str):
            yield node.lineno, node.value


def topics_in(tree: ast.Module) -> set[int]:
    """The lines of a module's topic literals."""
    return {line for line, text in texts(tree) if TOPIC.search(text)}


def test_a_topic_literal_is_found_in_each_form_that_it_may_have() -> None:
    forms = ['f"waybill/1/{tenant}/{device}/ack"', 'b"vehicle/#"', 'base + "/config-result"', '"$share/gateway/" + it']
    assert all(topics_in(ast.parse(f"x = {form}")) == {1} for form in forms)
    assert topics_in(ast.parse('"""On `waybill/1/{tenant}/{device}/ack`."""\nx = "waybill.too_large"')) == set()


def test_no_other_module_has_a_topic_literal() -> None:
    modules = {**MODULES, **BENCHMARKS}
    found = {f"{path}:{line}" for path, tree in modules.items() for line in topics_in(tree) if path != HOME}
    assert found == set()


def test_the_topics_in_the_docs_are_those_of_the_code() -> None:
    known = {device_topic("tenant", "device", channel) for channel in DeviceChannel}
    known |= {shared_filter(channel, "group") for channel in DeviceChannel}
    known |= {enrolment_rule(channel).replace("%u", "name") for channel in EnrolmentChannel}
    pages = [path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md")]
    written = {re.sub(r"[{}]", "", topic) for page in pages for topic in DOCUMENTED.findall(page)}
    assert written
    assert written <= known
