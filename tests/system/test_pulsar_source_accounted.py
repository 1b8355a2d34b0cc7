"""What is planned and not delivered is accounted for: transactions, acknowledgements of others; on a real Pulsar."""

import threading
import zlib
from collections.abc import Iterator

import httpx
import pulsar
import pytest

from cloud_jobs.pulsar_source.errors import ReadIncomplete, ReadStalled
from deploy.local import PulsarCluster, PulsarSettings
from tests.cloud_jobs.pulsar_source.by_hand import QueryByHand
from tests.cloud_jobs.pulsar_source.raw import RawProducer, metadata, pair, raw_producer
from tests.cloud_jobs.pulsar_source.world import LiveCluster, eventually

pytestmark = [pytest.mark.system, pytest.mark.nightly]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    broker: dict[str, str | int] = {
        "transactionCoordinatorEnabled": "true",
        "systemTopicEnabled": "true",
        "acknowledgmentAtBatchIndexLevelEnabled": "true",
    }
    server = PulsarCluster("exact", tmp_path_factory.mktemp("exact"), settings=PulsarSettings(broker=broker))
    server.start()
    server.wait()
    coordinator = (
        f"{server.admin_url}/lookup/v2/topic/persistent/pulsar/system/transaction_coordinator_assign-partition-0"
    )
    eventually("there is a coordinator", lambda: httpx.get(coordinator, timeout=20).is_success)
    found = LiveCluster.of(server)
    yield found
    found.close()
    server.kill()  # nobody needs what it has, and a stop in order may take its 20 s


COMPACTED = pytest.mark.parametrize("compacted", ["false", "true"])
LONG = {"properties": pair(b"k", b"v" * 60_000)}
"""More than the admin REST shows of an entry."""


@COMPACTED
def test_a_batch_that_ends_behind_an_open_transaction_waits_for_its_end(place: LiveCluster, compacted: str) -> None:
    query = QueryByHand(place, readTimeoutSeconds="3", readCompacted=compacted)
    place.send(query.topic, range(3), batching=False)
    with raw_producer(place, query.topic) as producer:
        transaction = producer.begin_transaction(query.topic)
        for number in (3, 4):
            producer.send_within(transaction, str(number).encode())
        place.send(query.topic, [5], batching=False)
        producer.send(metadata(**LONG), b"6")
        end, tasks = query.plan()
        with pytest.raises(ReadStalled):
            query.read(tasks)
        ending = threading.Timer(1, producer.commit, [transaction])
        ending.start()
        assert query.read(tasks) == list(range(7))
        ending.join()
    query.done(end)
    place.send(query.topic, [7], batching=False)
    assert query.read(query.plan()[1]) == [7]
    query.close()


@COMPACTED
@pytest.mark.parametrize("batching", [False, True])
def test_what_another_consumer_acknowledges_out_of_order_is_read_all_the_same(
    place: LiveCluster, batching: bool, compacted: str
) -> None:
    query = QueryByHand(place, readCompacted=compacted)
    place.send(query.topic, range(60), batching=batching)
    other = place.client.subscribe(
        query.topic, "s", consumer_type=pulsar.ConsumerType.Shared, batch_index_ack_enabled=True
    )
    for message in [other.receive(20_000) for _ in range(60)]:
        if 20 <= int(message.data()) < 40:
            other.acknowledge(message)
    other.close()
    _, tasks = query.plan()
    with pytest.raises(ReadIncomplete, match="somebody acknowledged"):
        query.read(tasks)
    assert query.read([planned.isolated_copy() for planned in tasks]) == list(range(60))
    query.close()


def chunk(producer: RawProducer, message: bytes, number: int, of: int, **more: int | bytes) -> None:
    value = message + str(number).encode()
    fields = {"total_chunk_msg_size": len(value) * of, **more}
    producer.send(metadata(uuid=message, num_chunks_from_msg=of, chunk_id=number, **fields), value)


def test_nothing_that_is_left_out_beside_a_last_chunk_hides_it(place: LiveCluster) -> None:
    query = QueryByHand(place, operationTimeoutSeconds="2")
    compressed = zlib.compress(b"c" * 50)
    with raw_producer(place, query.topic) as producer:
        chunk(producer, b"a", 0, 2)
        producer.send(metadata(), b"0")
        end, tasks = query.plan()
        assert query.read(tasks) == [0]
        query.done(end)
        chunk(producer, b"a", 1, 2)
        chunk(producer, b"of no chunk", 2**64 - 1, 2)
        chunk(producer, b"long", 0, 2, **LONG)
        head = metadata(uuid=b"z", num_chunks_from_msg=2, chunk_id=0, compression=2, uncompressed_size=50)
        producer.send([*head, (28, 2 * len(compressed))], compressed)
        for number in range(600):
            chunk(producer, b"big", number, 6000, total_chunk_msg_size=40_000)
        producer.send(metadata(), b"1")
        _, tasks = query.plan()
        assert [row["value"] for row in query.rows(tasks)] == [b"1", b"a0a1"]
    query.close()


def test_messages_that_begin_far_before_a_batch_are_looked_for_together(place: LiveCluster) -> None:
    query = QueryByHand(place)
    with raw_producer(place, query.topic) as producer:
        chunk(producer, b"a", 0, 2)
    place.send(query.topic, range(1500), batching=False)
    end, tasks = query.plan()
    assert query.read(tasks) == list(range(1500))
    query.done(end)
    with raw_producer(place, query.topic) as producer:
        for number in range(5):
            chunk(producer, b"alone %d" % number, 1, 2)
        chunk(producer, b"a", 1, 2)
        producer.send(metadata(), b"1")
        _, tasks = query.plan()
        values = [row["value"] for row in query.rows(tasks)]
        assert (values.count(None), set(values)) == (5, {None, b"1", b"a0a1"})
    query.close()
