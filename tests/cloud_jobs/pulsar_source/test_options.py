"""Options, batches, positions and topics of the source."""

import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.pulsar_source import OptionError
from cloud_jobs.pulsar_source.lookahead import newest_positions, start_positions
from cloud_jobs.pulsar_source.options import PulsarOptions, TopicName
from cloud_jobs.pulsar_source.position import BEGINNING, LedgerInfo, LedgerPosition, Offset, PartitionState, ranges
from cloud_jobs.pulsar_source.source import PulsarBatchReader
from tests.cloud_jobs.pulsar_source.addresses import STATS, Reply, address, cluster_says, document, page
from waybill.pulsar.pulsar_client import PulsarToken

ONE = {"clusters": "hq=pulsar://h:6650|http://h:8080", "topics": "t"}
TWO = ONE | {"clusters": "hq=pulsar://h:6650|http://h:8080, dr=pulsar://d:6650|http://d:8080/"}
DOCUMENT = Path(__file__).parents[3] / "docs" / "pulsar-source.md"


def test_options_are_taken_in_any_case_as_spark_gives_them() -> None:
    options = PulsarOptions.parse({key.lower(): value for key, value in ONE.items()} | {"maxmessagespertrigger": "7"})
    assert options.max_messages_per_trigger == 7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (ONE | {"clusters": "hq=pulsar://h:6650|http://h:port"}, "is not a cluster"),
        (ONE | {"topics": "t/n/.."}, "no address"),
        ({"topics": "t"}, "clusters: Field required"),
        (ONE | {"topics": ""}, "at least 1 item"),
        (ONE | {"clusters": "hq"}, "is not a cluster"),
        (TWO | {"failoverFile": "s3a://bucket/failover.json"}, "is an address"),
        (ONE | {"clusters": f"{ONE['clusters']},{ONE['clusters']}", "failoverFile": "f"}, "named twice"),
        (ONE | {"token": "a", "tokenFile": "b"}, "not both"),
        (ONE | {"tlsKey": "k"}, "belong together"),
        (ONE | {"maxMessagesPerTrigger": "0"}, "greater than or equal to 1"),
        (ONE | {"columns": "value,colour"}, "takes some of value"),
        (ONE | {"topics": "non-persistent://a/b/c"}, "is not a topic"),
    ],
)
def test_options_that_do_not_fit_are_refused_with_the_reason(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        PulsarOptions.parse(options)


def test_a_token_is_kept_for_the_workers_and_out_of_every_text() -> None:
    options = PulsarOptions.parse(ONE | {"token": "s3cret"})
    assert "s3cret" not in repr(options) + str(options)
    assert PulsarToken(pickle.loads(pickle.dumps(options)))() == "s3cret"  # noqa: S301  # as Spark does


def test_every_option_is_documented() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    missing = [field.alias for field in PulsarOptions.model_fields.values() if f"`{field.alias}`" not in text]
    assert not missing


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
    [({}, 0), ({"readCompacted": "true"}, 1)],
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


positions = st.builds(LedgerPosition, st.integers(0, 9), st.integers(-1, 9)) | st.builds(
    LedgerPosition, st.integers(0, 9), st.integers(0, 9), st.integers(0, 5)
)
topics = st.sampled_from([f"persistent://t/n/topic-partition-{number}" for number in range(4)])
by_topic = st.dictionaries(topics, positions)


@given(positions)
def test_a_position_comes_back_from_its_text(position: LedgerPosition) -> None:
    assert LedgerPosition.parse(str(position)) == position


@given(by_topic, by_topic)
def test_neighbouring_ranges_meet_without_a_gap(
    start: dict[str, LedgerPosition], end: dict[str, LedgerPosition]
) -> None:
    pieces = {piece.topic: piece for piece in ranges(Offset("hq", start), Offset("hq", end))}
    for topic, last in end.items():
        first = start.get(topic, BEGINNING)
        if last > first:
            assert (pieces[topic].start, pieces[topic].end) == (first, last)
        else:
            assert topic not in pieces


def test_after_a_change_of_cluster_a_range_begins_at_the_origin_and_never_at_the_other_clusters_position():
    start = Offset("hq", {"t": LedgerPosition(900, 5)})
    end = Offset("dr", {"t": LedgerPosition(3, 9)}, {"t": LedgerPosition(3, 1)})
    assert [(piece.start, piece.end) for piece in ranges(start, end)] == [(LedgerPosition(3, 1), LedgerPosition(3, 9))]


def test_an_offset_of_another_version_is_refused_with_a_way_to_go_on():
    with pytest.raises(ValueError, match="new checkpoint"):
        Offset.from_json({"cluster": "hq", "positions": {}})


UNREADABLE = [".", "..", "a\0b", "x" * 5_000, "é" * 1_000]


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_name_that_no_address_can_hold_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no address"):
        TopicName.parse(f"persistent://t/n/{name}")
