"""A stranger on the machine against the local Spark cluster: only who has its secret runs code on it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cloud_jobs.job_settings import SparkSettings
from cloud_jobs.spark import start_spark
from deploy.local import PortBook, Server, SparkCluster, SparkClusterSettings, wait_all

pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.own_servers, pytest.mark.timeout(300)]

STRANGER = """
import sys
from pyspark.sql import SparkSession
session = SparkSession.builder.master(sys.argv[1]).config("spark.driver.host", "127.0.0.1")
session = session.config("spark.ui.enabled", "false").config("spark.executor.memory", "512m")
for one in sys.argv[3:]:
    session = session.config(*one.split("="))
context = session.getOrCreate().sparkContext
context.parallelize([sys.argv[2]], 1).foreach(lambda path: open(path, "w").close())
print("RAN", flush=True)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    folder = tmp_path_factory.mktemp("spark-attacks")
    made = SparkCluster(folder, SparkClusterSettings(workers=1), PortBook(folder / "ports.json"))
    servers: list[Server] = [made.master, *made.workers]
    try:
        for server in servers:
            server.start()
            server.wait()
        wait_all(servers)
        yield made
    finally:
        for server in reversed(servers):
            server.kill()


@pytest.mark.parametrize(
    "more",
    [
        pytest.param([], id="no secret"),
        pytest.param(
            ["spark.authenticate=true", "spark.authenticate.secret=another"],
            id="another secret",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_a_stranger_runs_nothing_on_the_cluster(cluster: SparkCluster, tmp_path: Path, more: list[str]) -> None:
    mark = tmp_path / "ran"
    environment = os.environ | {"PYSPARK_PYTHON": str(cluster.master.python)}
    arguments = [sys.executable, "-c", STRANGER, cluster.master.url, str(mark), *more]
    pipe, join = subprocess.PIPE, subprocess.STDOUT
    with subprocess.Popen(
        arguments, env=environment, stdout=pipe, stderr=join, text=True, start_new_session=True
    ) as made:
        assert made.stdout is not None
        said = []
        try:
            for line in made.stdout:
                said.append(line)
                if "Failed to connect to master" in line or "RAN" in line:
                    break
        finally:
            os.killpg(made.pid, signal.SIGKILL)
    assert any("Failed to connect to master" in line for line in said), said[-20:]
    assert not mark.exists()


def test_our_job_runs_and_its_secret_is_on_no_command_line_and_in_no_open_file(cluster: SparkCluster) -> None:
    settings = SparkSettings.model_validate(tomllib.loads(cluster.job_settings())["spark"])
    secret, lines = cluster.master.secret_file.read_bytes(), []
    session = start_spark("waybill-tests", settings)
    try:
        assert session.sparkContext.parallelize(range(4), 4).sum() == 6
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
                lines.append(path.read_bytes())
    finally:
        session.stop()
    assert any(b"CoarseGrainedExecutorBackend" in line for line in lines)
    assert not any(secret in line for line in lines)
    files = [cluster.master.secret_file]
    files += [daemon.folder / "spark-defaults.conf" for daemon in (cluster.master, *cluster.workers)]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
