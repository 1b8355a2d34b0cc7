import pytest

from cloud_jobs.pulsar_source.lookahead import newest_positions, start_positions
from cloud_jobs.pulsar_source.options import PulsarOptions
from cloud_jobs.pulsar_source.position import BEGINNING, LedgerInfo, LedgerPosition, PartitionState
from cloud_jobs.pulsar_source.source import PulsarBatchReader
from tests.cloud_jobs.pulsar_source.addresses import STATS, Reply, address, cluster_says, document, page

TOPIC = "persistent://t/n/x"
COMPACTED = STATS | {
    "lastConfirmedEntry": "17:7",
    "ledgers": [{"ledgerId": 20, "entries": 0, "size": 0}],
    "cursors": {},
}


def options_of(*urls: str, **more: str) -> PulsarOptions:
    clusters = (f"{name}=pulsar://127.0.0.1:1|{url}" for name, url in zip(("hq", "dr"), urls, strict=False))
    return PulsarOptions.parse({"clusters": ",".join(clusters), "topics": TOPIC, "subscription": "s"} | more)


@pytest.mark.parametrize("status", [503, 401, 404])
def test_the_first_cluster_that_answers_is_read_without_a_failover_file(status: int) -> None:
    with address() as hq, address() as dr:
        hq.says = lambda _: page(status)
        (task,) = PulsarBatchReader(options_of(hq.url, dr.url)).partitions()
        assert (task.cluster.name, task.start, task.end) == ("dr", BEGINNING, LedgerPosition(3, 9))
        dr.says = hq.says
        with pytest.raises(Exception, match=f"dr.*{status}"):
            PulsarBatchReader(options_of(hq.url, dr.url)).partitions()


def only_compacted(path: str) -> Reply:
    return document(COMPACTED) if path.endswith("/internalStats") else cluster_says(path)


@pytest.mark.parametrize(
    ("more", "tasks"),
    [({}, 0), ({"readCompacted": "true"}, 1), ({"readCompacted": "true", "startingPosition": "latest"}, 0)],
)
def test_what_was_compacted_is_read_when_its_ledgers_are_gone(more: dict[str, str], tasks: int) -> None:
    with address() as hq:
        hq.says = only_compacted
        assert len(PulsarBatchReader(options_of(hq.url, **more)).partitions()) == tasks


@pytest.mark.parametrize(
    ("more", "cursor", "begin"),
    [
        ({"readCompacted": "true"}, LedgerPosition(20, -1), BEGINNING),
        ({"readCompacted": "true"}, LedgerPosition(20, 3), LedgerPosition(20, 3)),
        ({"readCompacted": "true", "startingPosition": "latest"}, LedgerPosition(20, -1), LedgerPosition(20, -1)),
        ({}, LedgerPosition(20, -1), LedgerPosition(20, -1)),
    ],
)
def test_a_stream_of_a_compacted_topic_begins_before_the_ledgers_that_are_left(
    more: dict[str, str], cursor: LedgerPosition, begin: LedgerPosition
) -> None:
    states = {TOPIC: PartitionState((LedgerInfo(20, 0, 0),), LedgerPosition(17, 7), cursor)}
    found = start_positions({}, states, options_of("http://127.0.0.1:1", **more))
    assert found == {TOPIC: begin}
    assert newest_positions(found, states) == {TOPIC: LedgerPosition(17, 7) if begin == BEGINNING else begin}
