"""The source on a cluster that asks for TLS and a token."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pydantic import SecretStr
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from cloud_jobs import outbox, reference_publisher
from cloud_jobs.errors import NotPublished, ReferenceNotPublished
from cloud_jobs.outbox import topic_sender
from cloud_jobs.pulsar_source import AccessRefused
from cloud_jobs.pulsar_source.cluster.admin import SourceAdmin
from cloud_jobs.pulsar_source.driver.driver import Driver
from cloud_jobs.pulsar_source.errors import PulsarSourceError
from cloud_jobs.pulsar_source.position import LedgerPosition
from cloud_jobs.pulsar_source.reading.entry_store import open_entry_store
from cloud_jobs.reference_publisher import publish
from geo.replication import AdminRefused, ClusterUnreachable, Topology, admins, inspect_clusters
from geo.replication.apply import check_addresses
from tests.cloud_jobs.pulsar_source.guarded import GuardedCluster
from tests.cloud_jobs.pulsar_source.held import guarded_options, halves, held_over
from tests.cloud_jobs.pulsar_source.world import DeliveredBatches, read_available, stream
from waybill.pulsar.pulsar_client import PulsarAccess

pytestmark = pytest.mark.system
TOPIC = "persistent://public/default/guarded"


def access_of(token: str, authority: Path | None = None) -> PulsarAccess:
    return PulsarAccess(token=SecretStr(token), tls_ca=authority)


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


@pytest.mark.nightly
@pytest.mark.parametrize(("batches", "rotations"), [(12, 6), pytest.param(1000, 100, marks=pytest.mark.nightly)])
def test_threads_sockets_and_memory_stay_as_they_are_over_batches_and_rotations_of_the_token(
    cluster: GuardedCluster, tmp_path: Path, batches: int, rotations: int
) -> None:
    """One process plans, reads and acknowledges; `make bench-source-growth` has the figures."""
    first, second = halves(list(held_over(cluster, tmp_path, batches, rotations)))
    assert second.threads <= first.threads
    assert second.sockets <= first.sockets + 2
    assert second.memory_bytes <= first.memory_bytes + (32 << 20)


@pytest.mark.nightly
def test_what_a_broker_sends_is_looked_at_over_tls_with_a_token(cluster: GuardedCluster, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(cluster.token("reader"))
    options, partition = guarded_options(cluster, file, TOPIC), f"{TOPIC}-partition-0"
    here = options.all_clusters()[0]
    with closing(SourceAdmin(here, options, 20)) as admin:
        last = admin.partition_state(partition, "").last
    with open_entry_store(here, options, partition) as stored:
        sent = [place.entry for place, _ in stored.sent(LedgerPosition(last.ledger, 0), last, lambda: 60.0)]
    assert sent == list(range(last.entry + 1))
    file.write_text(cluster.token("nobody"))
    with open_entry_store(here, options, partition) as stored, pytest.raises(PulsarSourceError):
        list(stored.sent(LedgerPosition(last.ledger, 0), last, lambda: 60.0))


@pytest.mark.nightly
def test_a_token_that_is_replaced_by_a_wrong_one_is_refused(cluster: GuardedCluster, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(cluster.token("reader"))
    driver = Driver(guarded_options(cluster, file, TOPIC))
    start = driver.begin()
    file.write_text("a.b.c")
    with pytest.raises(AccessRefused):
        driver.choose_end(start, limited=True)
    driver.close()


@pytest.mark.nightly
def test_the_topology_commands_show_their_token_and_trust_their_own_authority_at_both_addresses(
    cluster: GuardedCluster,
) -> None:
    address = {
        "service_url": f"pulsar+ssl://127.0.0.1:{cluster.tls_broker_port}",
        "admin_url": f"https://127.0.0.1:{cluster.tls_web_port}",
    }
    topology = Topology.model_validate(
        {
            "centre": "guarded",
            "clusters": {"guarded": {"address": address}},
            "regions": {"eu": {"cluster": "guarded"}},
            "tenants": {"fleet": {}},
        }
    )
    with admins(topology, access_of(cluster.token("admin"), cluster.certificate)) as clients:
        assert [one.belongs for one in check_addresses(topology, clients)] == [True]
    with admins(topology, access_of("a.b.c", cluster.certificate)) as clients, pytest.raises(AdminRefused, match="401"):
        inspect_clusters(topology, clients)
    with (
        admins(topology, access_of(cluster.token("admin"))) as clients,
        pytest.raises(ClusterUnreachable, match=r"(?i)certificate"),
    ):
        inspect_clusters(topology, clients)


@pytest.mark.nightly
def test_what_is_published_shows_its_token_and_trusts_its_own_authority(
    cluster: GuardedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, topic = f"pulsar+ssl://127.0.0.1:{cluster.tls_broker_port}", "persistent://public/default/published"
    rows = [{"id": "a", "revision": 1}]
    topic_sender([url], topic, dict, access_of(cluster.token("admin"), cluster.certificate))(iter(rows))
    # The client asks again until its time is over, although nothing becomes better.
    for module in (outbox, reference_publisher):
        monkeypatch.setattr(module, "_TIMEOUT_S", 3)
    for wrong in (access_of("a.b.c", cluster.certificate), access_of(cluster.token("admin"))):
        with pytest.raises(NotPublished):
            topic_sender([url], topic, dict, wrong)(iter(rows))
        with pytest.raises(ReferenceNotPublished):
            publish([url], [], wrong)
