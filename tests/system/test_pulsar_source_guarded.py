"""The source on a cluster that asks for TLS and a token."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pulsar
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from cloud_jobs.pulsar_source import AccessRefused
from cloud_jobs.pulsar_source.driver import Driver
from cloud_jobs.pulsar_source.options import PulsarOptions
from cloud_jobs.pulsar_source.reading import read_range
from tests.cloud_jobs.pulsar_source.guarded import GuardedCluster
from tests.cloud_jobs.pulsar_source.world import Collected, read_available, session, stream

pytestmark = pytest.mark.system
TOPIC = "persistent://public/default/guarded"


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    return session()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedCluster]:
    server = GuardedCluster(tmp_path_factory.mktemp("guarded"))
    server.start()
    server.wait()
    admin = {"Authorization": f"Bearer {server.token('admin')}"}
    with httpx.Client(base_url=f"{server.admin_url}/admin/v2", headers=admin, timeout=20) as http:
        namespace = "namespaces/public/default/permissions/reader"
        assert http.post(f"/{namespace}", json=["consume"]).is_success
        assert http.put("/persistent/public/default/guarded/partitions", json=2).is_success
    client = pulsar.Client(server.service_url, authentication=pulsar.AuthenticationToken(server.token("admin")))
    producer = client.create_producer(TOPIC)
    for number in range(100):
        producer.send_async(str(number).encode(), None, partition_key=str(number))
    producer.flush()
    client.close()
    yield server
    server.stop()


def test_a_role_that_may_consume_reads_over_tls_with_a_token(
    cluster: GuardedCluster, spark: SparkSession, tmp_path: Path
):
    (tmp_path / "token").write_text(cluster.token("reader"))
    options = {"tokenFile": str(tmp_path / "token"), "tlsTrustCertsFile": str(cluster.certificate), "topics": TOPIC}
    collected = Collected()
    read_available(stream(spark, cluster.text, subscription="s", **options), collected, tmp_path / "checkpoint")
    assert sorted(collected.numbers()) == list(range(100))
    batch = spark.read.format("pulsar").options(clusters=cluster.text, **options).load()
    assert batch.count() == 100


@pytest.mark.parametrize(
    ("wrong", "message"), [({"token": "a.b.c"}, "refused"), ({"tlsTrustCertsFile": ""}, "did not answer|certificate")]
)
def test_a_wrong_token_or_an_unknown_authority_is_refused_in_words(
    cluster: GuardedCluster, spark: SparkSession, tmp_path: Path, wrong: dict[str, str], message: str
):
    right = {"token": cluster.token("reader"), "tlsTrustCertsFile": str(cluster.certificate)}
    options = {key: value for key, value in (right | wrong).items() if value}
    frame = stream(spark, cluster.text, topics=TOPIC, subscription="t", readTimeoutSeconds="2", **options)
    with pytest.raises(StreamingQueryException, match=message):
        read_available(frame, Collected(), tmp_path)


@pytest.mark.parametrize("rotations", [10, pytest.param(100, marks=pytest.mark.nightly)])
def test_threads_sockets_and_memory_stay_as_they_are_while_the_token_is_rotated(
    cluster: GuardedCluster, tmp_path: Path, rotations: int
):
    """One process plans, reads and acknowledges with a token that is another one each time."""
    file = tmp_path / "token"
    options = PulsarOptions.parse(
        {
            "clusters": cluster.text,
            "topics": TOPIC,
            "subscription": f"rotated-{rotations}",
            "tokenFile": str(file),
            "tlsTrustCertsFile": str(cluster.certificate),
            "maxMessagesPerTrigger": "1",
        }
    )
    start, held = None, []
    until_s = time.time() + 3600
    file.write_text(cluster.token("reader", until_s))
    driver = Driver(options)
    for rotation in range(rotations):
        file.write_text(cluster.token("reader", until_s + rotation))
        start = start or driver.initial()
        end = driver.latest(start, limited=True)
        for planned in driver.plan(start, end):
            assert sum(batch.num_rows for batch in read_range(options, planned)) == 1
        driver.commit(end)
        start = end
        held.append(what_is_held())
    file.write_text("a.b.c")
    with pytest.raises(AccessRefused):
        driver.latest(start, limited=True)
    driver.close()
    settled, last = held[rotations // 3], held[-1]
    assert last.threads <= settled.threads
    assert last.sockets <= settled.sockets + 2
    assert last.memory_bytes <= settled.memory_bytes + (16 << 20)


class Held(NamedTuple):
    """What this process holds."""

    threads: int
    sockets: int
    memory_bytes: int


def what_is_held() -> Held:
    own = Path("/proc/self")
    status = dict(line.split(":", 1) for line in (own / "status").read_text().splitlines())
    sockets = sum(1 for link in (own / "fd").iterdir() if link.is_symlink() and "socket:" in str(link.readlink()))
    return Held(int(status["Threads"]), sockets, int(status["VmRSS"].split()[0]) * 1024)
