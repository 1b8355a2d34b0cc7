"""The jobs on a real Spark cluster: who runs code on it, rows are those of local[2], executors die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import cloud_jobs
from cloud_jobs.config import CloudSettings, ClusterSettings, IngestSettings
from cloud_jobs.geofence.event_revisions import GeofenceSettings
from cloud_jobs.geofence.job import compute_events
from cloud_jobs.ingest import job as ingest_job
from cloud_jobs.ingest.decoding import Batches
from cloud_jobs.ingest.job import start_ingest
from cloud_jobs.ingest.parts import write_parts
from cloud_jobs.job_settings import ProximitySettings, SparkSettings
from cloud_jobs.lake.coverage import DeviceStream
from cloud_jobs.lake.location import Location
from cloud_jobs.proximity.job import compute_encounters
from cloud_jobs.spark import start_spark
from cloud_jobs.usage.job import compute_usage
from deploy.local import PortBook, PulsarCluster, Server, SparkCluster, wait_all
from geo.spatial import TrackSettings
from tests.cloud_jobs.pulsar_source.world import LiveCluster
from tests.system.lake_of_fixes import lake_of, square
from waybill.record import Batch, IntervalSet, Position, Record, Tombstone, encode

# A cluster with its own Spark takes minutes to be ready: what runs at each change has local[2], which gives these rows.
pytestmark = [pytest.mark.system, pytest.mark.own_servers, pytest.mark.nightly, pytest.mark.timeout(300)]
# Executors have our packages and none of the tests: what these give them travels as code.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

ROOT = Path(cloud_jobs.__file__).parents[1]
EPOCH = 7
DEVICES = (("acme", "eu-0001"), ("acme", "eu-0002"), ("acme", "us-0001"), ("other", "eu-0001"))
SEQS = 240
DERIVED = ("usage", "geofence_events", "encounters")
TEN_US = int(datetime(2026, 1, 5, 10, tzinfo=UTC).timestamp() * 1_000_000)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SparkCluster, LiveCluster]]:
    folder = tmp_path_factory.mktemp("spark-cluster")
    ports = PortBook(folder / "ports.json")
    cluster, pulsar = SparkCluster(folder, ports), PulsarCluster("hq", folder / "hq")
    started: list[Server] = [cluster.master, pulsar, *cluster.workers]
    try:
        cluster.master.start()
        pulsar.start()
        cluster.master.wait()
        for worker in cluster.workers:
            worker.start()
        wait_all(started)
        place = LiveCluster.of(pulsar)
        yield cluster, place
        place.close()
    finally:
        for server in reversed(started):
            server.kill()


@pytest.fixture(scope="module")
def topic(servers: tuple[SparkCluster, LiveCluster]) -> str:
    """Batches of devices of two tenants in two partitions; some come twice, one of each device is no batch."""
    _, place = servers
    topic = place.new_topic(2, "batches")
    for tenant, device in DEVICES:
        properties = {"tenant": tenant, "region": "eu"}
        producer = place.client.create_producer(topic)
        for first in range(1, SEQS, 20):
            batch = drive(tenant, device, range(first, first + 20))
            for _ in range(2 if first % 3 == 0 else 1):
                producer.send(batch, properties=properties, partition_key=device)
        producer.send(b"no batch", properties=properties, partition_key=device)
        producer.close()
    return topic


def drive(tenant: str, device: str, seqs: range) -> bytes:
    """A track through the fence, one fix each 20 s; of another tenant beside it and ahead."""
    beside, ahead = (0.0, 0) if tenant == "acme" else (0.001, 7)
    records = tuple(
        Record(seq, TEN_US + seq * 20_000_000, Position(latitude=0.005 + beside, longitude=(seq + ahead) / 20_000))
        for seq in seqs
    )
    return encode(Batch(device, EPOCH, SEQS + 5, records, (Tombstone(SEQS + 1, SEQS + 2, "quota"),)))


class JobRun(NamedTuple):
    """A lake of its own that reads the topic from its beginning."""

    settings: CloudSettings

    @classmethod
    def of(cls, folder: Path, place: LiveCluster, topic: str, name: str) -> JobRun:
        hq = ClusterSettings(name="hq", service_url=place.service_url, admin_url=place.admin_url)
        read = IngestSettings(topics=(topic,), subscription=name, max_age_days=36_500)
        return cls(CloudSettings(lake=folder / "lake", checkpoints=folder / "checkpoints", clusters=(hq,), ingest=read))

    def ingest(self, spark: SparkSession) -> None:
        query = start_ingest(spark, self.settings, available_now=True).query
        assert query.awaitTermination(120)

    def derive(self, spark: SparkSession) -> None:
        """Usage, events and encounters."""
        lake = lake_of(self.settings.location, [square("square")])
        compute_usage(spark, lake, TrackSettings())
        compute_events(spark, lake, TrackSettings(), GeofenceSettings(dwell_s=120.0))
        compute_encounters(spark, lake, TrackSettings(), ProximitySettings())

    def derived(self) -> bytes:
        """All that was derived from the records, byte for byte, but for when."""
        tables = {name: self.rows(name, "computed_at", "emitted_at") for name in DERIVED}
        assert all(tables.values())
        return json.dumps(tables, default=str).encode()

    def rows(self, table: str, *left_out: str) -> list[dict[str, Any]]:
        rows = self.settings.tables.rows(table).to_pylist()
        kept = [{name: value for name, value in row.items() if name not in left_out} for row in rows]
        return sorted(kept, key=str)


@contextmanager
def session(settings: SparkSettings, lake: Location) -> Iterator[SparkSession]:
    running = start_spark("waybill-tests", settings, lake)
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def on_one_machine(
    servers: tuple[SparkCluster, LiveCluster], topic: str, tmp_path_factory: pytest.TempPathFactory
) -> JobRun:
    run = JobRun.of(tmp_path_factory.mktemp("local"), servers[1], topic, "local")
    with session(SparkSettings(), run.settings.location) as spark:
        run.ingest(spark)
        run.derive(spark)
    return run


@pytest.fixture(scope="module")
def on_cluster(
    servers: tuple[SparkCluster, LiveCluster],
    on_one_machine: JobRun,  # one process has one session at a time
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[SparkSession]:
    settings = SparkSettings.model_validate(tomllib.loads(servers[0].job_settings())["spark"])
    with session(settings, Location.of(tmp_path_factory.mktemp("shared"))) as running:
        yield running


@pytest.fixture
def run(servers: tuple[SparkCluster, LiveCluster], topic: str, tmp_path: Path) -> JobRun:
    return JobRun.of(tmp_path, servers[1], topic, tmp_path.name)


# The attacks come first: one process has one session at a time.
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


@pytest.mark.parametrize(
    "more",
    [
        pytest.param([], id="no secret"),
        pytest.param(["spark.authenticate=true", "spark.authenticate.secret=another"], id="another secret"),
    ],
)
def test_a_stranger_runs_nothing_on_the_cluster(
    servers: tuple[SparkCluster, LiveCluster], tmp_path: Path, more: list[str]
) -> None:
    mark = tmp_path / "ran"
    environment = os.environ | {"PYSPARK_PYTHON": str(servers[0].master.python)}
    arguments = [sys.executable, "-c", STRANGER, servers[0].master.url, str(mark), *more]
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


def test_our_job_runs_and_its_secret_is_on_no_command_line_and_in_no_open_file(
    servers: tuple[SparkCluster, LiveCluster],
) -> None:
    cluster, lines = servers[0], []
    settings = SparkSettings.model_validate(tomllib.loads(cluster.job_settings())["spark"])
    secret = cluster.master.secret_file.read_bytes()
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


def test_executors_have_the_project_from_the_driver_and_not_from_the_source_tree(
    servers: tuple[SparkCluster, LiveCluster], on_cluster: SparkSession
) -> None:
    def look(_: int) -> tuple[str, list[str], str, str]:
        import cloud_jobs  # noqa: PLC0415 - as the executor finds it

        return cloud_jobs.__file__, sys.path, str(Path.cwd()), os.environ.get("PYTHONPATH", "")

    found = on_cluster.sparkContext.parallelize(range(4), 4).map(look).collect()
    work = [worker.folder / "work" for worker in servers[0].workers]
    for origin, path, folder, inherited in found:
        archive = Path(origin).parents[1]
        assert archive.name.startswith("waybill-")
        assert archive.suffix == ".zip"
        assert any(Path(folder).is_relative_to(one) for one in work)
        assert str(ROOT) not in path
        assert str(ROOT) not in inherited.split(":")
    assert len({folder for _, _, folder, _ in found}) == 2, "each executor has a folder of its own"


def test_all_jobs_give_the_same_rows_on_the_cluster_as_on_one_machine(
    on_one_machine: JobRun, on_cluster: SparkSession, run: JobRun
) -> None:
    run.ingest(on_cluster)
    run.derive(on_cluster)
    assert len(run.rows("records")) == len(DEVICES) * SEQS
    assert run.rows("records", "ingested_at") == on_one_machine.rows("records", "ingested_at")
    assert run.settings.tables.coverage() == on_one_machine.settings.tables.coverage()
    assert run.rows("quarantine", "quarantined_at") == on_one_machine.rows("quarantine", "quarantined_at")
    assert {row["tenant"] for row in run.rows("usage")} == {"acme", "other"}
    assert run.derived() == on_one_machine.derived()


def killing(mark: Path, *, after_writing: bool) -> Callable[..., Any]:
    """`write_parts` whose first task takes its whole executor down, before or after its files are written."""

    def write_parts_or_die(*arguments: Any, **named: Any) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
        write = write_parts(*arguments, **named)

        def written_or_dead(batches: Batches) -> Iterator[pa.RecordBatch]:
            if not after_writing:
                die_once(mark)
            made = list(write(batches))
            if after_writing and made:
                die_once(mark)
            yield from made

        return written_or_dead

    return write_parts_or_die


def die_once(mark: Path) -> None:
    """Kills the executor, whose Python processes are children of one that it started; whoever is the first does it."""
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    fields = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
    executor = int(fields[1])
    assert b"CoarseGrainedExecutorBackend" in Path(f"/proc/{executor}/cmdline").read_bytes()
    os.kill(executor, signal.SIGKILL)
    signal.pause()


@pytest.mark.parametrize(
    "after_writing", [pytest.param(False, id="before it writes"), pytest.param(True, id="after it wrote")]
)
def test_an_executor_that_is_killed_in_a_micro_batch_loses_and_doubles_nothing(
    on_cluster: SparkSession, run: JobRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, after_writing: bool
) -> None:
    mark = tmp_path / "killed"
    monkeypatch.setattr(ingest_job, "write_parts", killing(mark, after_writing=after_writing))
    run.ingest(on_cluster)
    assert mark.exists()
    found = [(row["tenant"], row["device"], row["seq"]) for row in run.rows("records")]
    assert sorted(found) == sorted((*device, seq) for device in DEVICES for seq in range(1, SEQS + 1))
    coverage = run.settings.tables.coverage()
    assert set(coverage) == {DeviceStream(*device, EPOCH) for device in DEVICES}
    for one in coverage.values():
        assert (one.received, one.declared_lost) == (IntervalSet([(1, SEQS)]), IntervalSet([(SEQS + 1, SEQS + 2)]))
        assert (one.head, one.missing) == (SEQS + 5, IntervalSet([(SEQS + 3, SEQS + 5)]))
