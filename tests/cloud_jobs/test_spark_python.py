"""What Spark starts as Python: what tasks import is there before they are forked, and nothing else is different."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from cloud_jobs import spark_python
from cloud_jobs.spark_python import IMPORTS, SOURCE, interpreter

COMMAND = Path(sys.executable).with_name("cloud-jobs-python")
LOOK = """
import json, os, sys
if __name__ == "__main__":
    names = ["decimal", "cloud_jobs.pulsar_source", "pyspark"]
    there = [name for name in names if name in sys.modules]
    import pyspark
    archives = [one for one in sys.path if os.path.isfile(one)]
    print(json.dumps([there, sys.argv[1:], sys.path[0], pyspark.__file__, os.environ["PYTHONPATH"], archives]))
"""


def started(folder: Path, *arguments: str, imports: str = "") -> list[object]:
    """What a module sees that is started with the archives of PySpark before all else, as Spark does it."""
    libraries = Path(spark_python.__file__).parents[1]
    pyspark = Path(_installed("pyspark"))
    archives = [*(pyspark / "python" / "lib").glob("*.zip"), *(pyspark / "jars").glob("spark-core_*.jar")]
    assert len(archives) == 3
    path = os.pathsep.join([*map(str, archives), str(libraries)])
    made = subprocess.run(
        [COMMAND, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path, IMPORTS: imports},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    found: list[object] = json.loads(made.stdout)
    assert found[4:] == [path, []]
    return found


def _installed(package: str) -> str:
    spec = find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return next(iter(spec.submodule_search_locations))


def test_a_module_is_run_as_python_would_and_pyspark_is_the_one_that_is_installed(tmp_path: Path) -> None:
    (tmp_path / "looks.py").write_text(LOOK)
    there, arguments, first, pyspark, *_ = started(tmp_path, "-m", "looks", "one", "two", imports="decimal")
    assert (there, arguments, first) == ([], ["one", "two"], str(tmp_path))
    assert pyspark == f"{_installed('pyspark')}/__init__.py"


@pytest.mark.parametrize(
    ("started", "expected"),
    [
        (["pyspark.daemon", "pyspark.worker"], [SOURCE, "decimal"]),
        (["pyspark.daemon", "pyspark.sql.worker.plan_data_source_read"], [SOURCE]),
        (["pyspark.sql.streaming.python_streaming_source_runner"], []),
    ],
)
def test_tasks_have_all_and_a_plan_the_source_before_they_are_forked(started: list[str], expected: list[str]) -> None:
    environment = {IMPORTS: f"{SOURCE},decimal"}
    assert spark_python.imported_before(started, environment) == expected
    assert spark_python.imported_before(started, {}) == []


def test_where_the_project_is_not_installed_spark_starts_our_own_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert interpreter() == str(COMMAND)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert interpreter() == str(tmp_path / "python")
