"""What is planned and not delivered is accounted for: transactions, acknowledgements of others; on a real Pulsar."""

import threading
from collections.abc import Iterator

import httpx
import pulsar
import pytest

from cloud_jobs.pulsar_source.errors import ReadIncomplete, ReadStalled
from deploy.local import PulsarCluster, PulsarSettings
from tests.cloud_jobs.pulsar_source.by_hand import QueryByHand
from tests.cloud_jobs.pulsar_source.raw import raw_producer
from tests.cloud_jobs.pulsar_source.world import Place, eventually

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
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
    found = Place("exact", server.service_url, server.admin_url)
    yield found
    found.close()
    server.stop()


def test_a_batch_that_ends_behind_an_open_transaction_waits_for_its_end(place: Place):
    query = QueryByHand(place, readTimeoutSeconds="3")
    place.send(query.topic, range(3), batching=False)
    with raw_producer(place.service_url, query.topic) as producer:
        transaction = producer.begin_transaction(query.topic)
        for number in (3, 4):
            producer.send_within(transaction, str(number).encode())
        place.send(query.topic, [5, 6], batching=False)
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


@pytest.mark.parametrize("batching", [False, True])
def test_what_another_consumer_acknowledges_out_of_order_is_read_all_the_same(place: Place, batching: bool):
    query = QueryByHand(place)
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
    assert query.read([planned.carefully() for planned in tasks]) == list(range(60))
    query.close()
