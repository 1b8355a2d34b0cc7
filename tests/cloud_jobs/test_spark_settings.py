"""Where Spark runs: one machine by default, a cluster by its master URL, wrong settings named before a start."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from cloud_jobs import spark_python
from cloud_jobs.errors import ExecutorsNotReady
from cloud_jobs.job_settings import SparkSettings
from cloud_jobs.spark import (
    PROJECT_PACKAGES,
    check_executors,
    spark_properties,
    standard_error_to,
    terminal_log,
    write_project_archive,
)
from cloud_jobs.spark_python import IMPORTS, SOURCE, interpreter

CLUSTER = "spark://10.0.0.5:7077"


def test_what_spark_writes_goes_to_a_file_and_what_follows_to_the_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    noise = [sys.executable, "-c", "import sys, time; sys.stdin.read(); print('WARN noise', file=sys.stderr)"]
    file = tmp_path / "checkpoints" / "spark-usage.log"
    with standard_error_to(file):
        spark = subprocess.Popen(noise, stdin=subprocess.PIPE)
    spark.communicate()
    os.write(2, b"ours\n")
    said = capfd.readouterr().err
    assert said.splitlines() == [f"Spark starts; its own log is {file}", "ours"]
    assert file.read_text() == "WARN noise\n"


def test_without_a_terminal_nothing_is_led_elsewhere(tmp_path: Path) -> None:
    assert terminal_log(tmp_path, "usage") is None


def test_without_a_cluster_the_driver_listens_on_loopback_alone() -> None:
    properties = spark_properties(SparkSettings())
    assert properties["spark.driver.host"] == properties["spark.driver.bindAddress"] == "127.0.0.1"
    assert properties["spark.master"] == "local[2]"
    assert not any(name.startswith(("spark.executor", "spark.cores", "spark.blockManager")) for name in properties)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"executor_memory": "1g", "max_cores": 2}, "executor_memory, max_cores: with local"),
        ({"master": CLUSTER, "extra": {"spark.master": "yarn"}}, "extra: spark.master is set by master"),
        ({"master": CLUSTER, "extra": {"master": "yarn"}}, "extra: master is not a Spark setting"),
        ({"master": CLUSTER, "executor_memory": "1gb"}, "executor_memory"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused_by_name(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        SparkSettings.model_validate({"master": "local[2]"} | settings)


def test_a_secret_is_of_a_closed_file_and_authenticates_the_job(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    settings = SparkSettings(master=CLUSTER, secret_file=file)
    with pytest.raises(ValueError, match="no such file"):
        settings.secret()
    file.touch(0o600)
    with pytest.raises(ValueError, match="fewer than 16"):
        settings.secret()
    file.write_text("0123456789abcdef\n")
    assert settings.secret() == "0123456789abcdef"
    file.chmod(0o640)
    with pytest.raises(ValueError, match="mode 640: chmod 600"):
        settings.secret()
    properties = spark_properties(settings)
    assert properties["spark.authenticate"] == properties["spark.network.crypto.enabled"] == "true"
    assert "spark.authenticate.secret" not in properties


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


# What is pickled by name into tasks: the source, and the parts of the jobs that run on executors.
ON_EXECUTORS = (
    "cloud_jobs.spark",
    "cloud_jobs.geofence.event_revisions",
    "cloud_jobs.ingest.micro_batch",
    "cloud_jobs.ingest.parts",
    "cloud_jobs.derived.incremental",
    "cloud_jobs.lake.data_files",
    "cloud_jobs.proximity.encounters",
    "cloud_jobs.proximity.encounters",
    "cloud_jobs.pulsar_source",
    "cloud_jobs.usage.metering",
)
PRINT_ORIGINS = """
import importlib, sys
for name in {modules!r}:
    importlib.import_module(name)
places = sorted({{sys.modules[name].__file__ for name in {packages!r} if name in sys.modules}})
print(";".join(places))
"""


def run_apart(archive: Path, folder: Path, code: str) -> list[str]:
    """Python with this environment's packages and the archive, but without the links to the source tree."""
    libraries = sysconfig.get_path("purelib")
    environment = {**os.environ, "PYTHONPATH": f"{archive}:{libraries}"}
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_what_executors_run_is_imported_from_the_archive_alone(tmp_path: Path) -> None:
    archive = write_project_archive(tmp_path)
    code = PRINT_ORIGINS.format(modules=ON_EXECUTORS, packages=PROJECT_PACKAGES)
    (places,) = run_apart(archive, tmp_path, code)
    assert places
    assert all(place.startswith(f"{archive}/") for place in places.split(";"))


class OneMachine:
    """The part of Spark's context that the check uses; its tasks run here, or are cancelled."""

    def __init__(self, failure: str = "", *, hangs: bool = False) -> None:
        self.defaultParallelism = 2
        self.failure = failure
        self.cancelled = threading.Event()
        self.hangs = hangs
        self.asked: list[Any] = []

    def parallelize(self, items: Any, slots: int) -> OneMachine:
        assert len(items) == slots
        self.asked = list(items)
        return self

    def map(self, task: Any) -> OneMachine:
        self.task = task
        return self

    def collect(self) -> list[Any]:
        if self.hangs:
            assert self.cancelled.wait(30)
            raise RuntimeError("cancelled")
        if self.failure:
            raise RuntimeError(self.failure)
        return [self.task(one) for one in self.asked]

    def setJobGroup(self, *_: str) -> None:  # noqa: N802 - Spark's name
        """Nothing to group."""

    def setLocalProperty(self, *_: object) -> None:  # noqa: N802 - Spark's name
        """As above."""

    def cancelJobGroup(self, _: str) -> None:  # noqa: N802 - Spark's name
        self.cancelled.set()


def test_executors_that_have_all_are_ready_and_no_mark_is_left(tmp_path: Path) -> None:
    (report,) = check_executors(OneMachine(), archive="", folders=[tmp_path], timeout_s=30)
    assert report.unseen == ()
    assert list(tmp_path.iterdir()) == []


def test_other_code_than_the_driver_s_is_named_once() -> None:
    with pytest.raises(ExecutorsNotReady, match="not what the driver sent") as caught:
        check_executors(OneMachine(), archive="waybill-1.zip", folders=[], timeout_s=30)
    assert str(caught.value).count("\n") == 1, "two tasks of one machine say it once"


@pytest.mark.parametrize(
    "said",
    [
        "Python in worker has different version: 3.12 than that in driver: 3.11",
        "ModuleNotFoundError: No module named 'deltalake'",
        'Cannot run program "/opt/python": error=2',
    ],
)
def test_why_executors_cannot_run_a_task_is_said_in_one_line(said: str) -> None:
    with pytest.raises(ExecutorsNotReady, match=re.escape(said)) as caught:
        check_executors(OneMachine(f"Job aborted\n  {said}\n  at org.apache"), archive="", folders=[], timeout_s=30)
    assert "org.apache" not in str(caught.value)


def test_executors_that_never_come_are_waited_for_only_so_long() -> None:
    with pytest.raises(ExecutorsNotReady, match="no executor answered within"):
        check_executors(OneMachine(hangs=True), archive="", folders=[], timeout_s=0.01)
