"""What the folders promise: who may import whom, what the edge installs, what is public."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution, requires

from tests.structure.sources import PACKAGES, ROOT

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
    assert {"paho-mqtt", "msgpack", "pydantic", "sqlite-utils", "tenacity"} <= needed
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
