"""The source on a cluster that asks for TLS and a token."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pulsar
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

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
