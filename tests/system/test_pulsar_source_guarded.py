"""The source on a cluster that asks for TLS and a token."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.cloud_jobs.pulsar_source.guarded import GuardedCluster
from tests.cloud_jobs.pulsar_source.world import DeliveredBatches, read_available, stream

pytestmark = pytest.mark.system
TOPIC = "persistent://public/default/guarded"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedCluster]:
    server = GuardedCluster(tmp_path_factory.mktemp("guarded"))
    server.start()
    server.wait()
    server.allow_reader()
    server.fill(TOPIC, 100)
    yield server
    server.kill()  # nobody needs what it has, and a stop in order may take its 20 s


def test_a_role_that_may_consume_reads_over_tls_with_a_token(
    cluster: GuardedCluster, spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text(cluster.token("reader"))
    options = {"tokenFile": str(tmp_path / "token"), "tlsCa": str(cluster.certificate), "topics": TOPIC}
    collected = DeliveredBatches()
    read_available(stream(spark, cluster.text, subscription="s", **options), collected, tmp_path / "checkpoint")
    assert sorted(collected.numbers()) == list(range(100))
    batch = spark.read.format("pulsar").options(clusters=cluster.text, **options).load()
    assert batch.count() == 100


@pytest.mark.parametrize(
    ("wrong", "message"), [({"token": "a.b.c"}, "refused"), ({"tlsCa": ""}, "did not answer|certificate")]
)
def test_a_wrong_token_or_an_unknown_authority_is_refused_in_words(
    cluster: GuardedCluster, spark: SparkSession, tmp_path: Path, wrong: dict[str, str], message: str
) -> None:
    right = {"token": cluster.token("reader"), "tlsCa": str(cluster.certificate)}
    options = {key: value for key, value in (right | wrong).items() if value}
    frame = stream(spark, cluster.text, topics=TOPIC, subscription="t", readTimeoutSeconds="2", **options)
    with pytest.raises(StreamingQueryException, match=message):
        read_available(frame, DeliveredBatches(), tmp_path)
