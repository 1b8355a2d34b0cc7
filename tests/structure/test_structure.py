"""What the folders promise: who may import whom, what the edge installs, what is public."""

import ast
import re
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, requires
from pathlib import Path

from tests.structure.ack_path import modules_of_two_acknowledgements
from tests.structure.architecture import COMMAND, renewed
from tests.structure.sources import PACKAGES, ROOT, statements

HEAVY = {"pyspark", "pyarrow", "numpy", "pandas", "pulsar", "shapely", "pyproj", "deltalake"}


def _needed(name: str, extra: str | None, seen: set[str]) -> set[str]:
    """The distributions that installing `name[extra]` pulls, by the metadata of what is installed here."""
    try:
        lines = requires(name) or []
    except PackageNotFoundError:
        return seen
    for line in lines:
        wanted = re.search(r"extra\s*==\s*['\"]([^'\"]+)['\"]", line)
        if wanted and wanted.group(1) != extra:
            continue
        dependency = re.split(r"[\s;<>=!~\[(]", line, maxsplit=1)[0].lower().replace("_", "-")
        if dependency not in seen:
            seen.add(dependency)
            _needed(dependency, None, seen)
    return seen


def test_the_edge_extra_pulls_nothing_heavy() -> None:
    needed = _needed("fleet-waybill", "edge", set())
    assert {"paho-mqtt", "msgpack", "pydantic", "tenacity"} <= needed
    assert not needed & {"pyspark", "pyarrow", "numpy", "pandas", "pulsar-client", "shapely", "pyproj", "deltalake"}


def test_the_agent_imports_nothing_heavy() -> None:
    program = "import sys, edge_agent.daemon, edge_agent.agent; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    modules = {module.partition(".")[0] for module in done.stdout.split()}
    assert not modules & HEAVY
    assert "prometheus_client" not in modules, "only who is asked pays for it"
    assert "cryptography" not in modules, "only who enrols or renews pays for it"


def test_a_durable_write_needs_no_mqtt_client_and_no_metrics() -> None:
    program = "import sys; from waybill.daemon.durable_file import replace_durably; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    extras = {"paho", "prometheus_client", "pydantic", "structlog", "tenacity"}
    assert not {module.partition(".")[0] for module in done.stdout.split()} & extras


def test_every_package_is_typed_and_in_the_distribution() -> None:
    assert all((ROOT / package / "py.typed").exists() for package in PACKAGES)
    assert distribution("fleet-waybill").metadata["License-Expression"] == "Apache-2.0"


def test_nothing_names_a_registry_or_this_machine() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    places = re.compile(r"--(extra-)?index-url|--find-links|pypi\.org|files\.pythonhosted|repo1?\.maven|/(work|root)/")
    offenders = [
        name
        for name in listed.stdout.splitlines()
        if name != "tests/structure/test_structure.py"
        and (ROOT / name).is_file()
        and places.search((ROOT / name).read_text(encoding="utf-8", errors="replace"))
    ]
    assert offenders == []


MAX_FUNCTION_LINES = 80
MAX_MODULE_LINES = 650


@cache
def sources() -> dict[str, str]:
    """The text of each module of the packages, tests and benchmarks, by its path."""
    return {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for folder in (*PACKAGES, "benchmarks", "tests")
        for path in sorted((ROOT / folder).rglob("*.py"))
    }


def test_no_module_is_longer_than_the_limit() -> None:
    lines = {path: len(text.splitlines()) for path, text in sources().items()}
    assert {path: count for path, count in lines.items() if count > MAX_MODULE_LINES} == {}


def test_no_function_is_longer_than_the_limit() -> None:
    lengths = {
        f"{path}: {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for path, text in sources().items()
        for node in statements(ast.parse(text).body)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {name: count for name, count in lengths.items() if count > MAX_FUNCTION_LINES} == {}


REPOSITORY = Path(__file__).resolve().parents[2]
ACK_MODULES_AT_MOST = 30


def test_the_drawing_and_the_table_of_imports_are_those_of_the_code() -> None:
    page = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert renewed(page) == page, f"imports changed: run `{COMMAND}` and commit the page"


def test_an_acknowledgement_runs_through_few_modules(tmp_path: Path) -> None:
    first, second = modules_of_two_acknowledgements(tmp_path)
    assert first == second
    assert len(first) <= ACK_MODULES_AT_MOST
