"""What an admin address answers, and what is made of it."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from cloud_jobs.pulsar_source import AccessRefused, SourceClusterUnreachable, TopicMissing
from cloud_jobs.pulsar_source.admin import SourceAdmin
from cloud_jobs.pulsar_source.options import SourceCluster, TopicName
from tests.cloud_jobs.pulsar_source.addresses import STATS, FakeAdmin, Reply, address, cluster_says, document, page
from waybill.pulsar.pulsar_client import PulsarAccess

TOPIC = TopicName("t", "n", "x")


@pytest.fixture(scope="module")
def shared() -> Iterator[FakeAdmin]:
    with address() as one:
        yield one


@pytest.fixture
def place(shared: FakeAdmin) -> FakeAdmin:
    shared.says = cluster_says
    shared.asked.clear()
    shared.authorizations.clear()
    return shared


def admin(place: FakeAdmin, timeout_s: float = 5, **access: Any) -> SourceAdmin:
    cluster = SourceCluster(name="hq", service_url="pulsar://127.0.0.1:1", admin_url=place.url)
    return SourceAdmin(cluster, PulsarAccess(**access), timeout_s)


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in STATS.items() if key != name}


NO_ANSWER_OF_PULSAR = {
    "a page with 200": page(200),
    "a page with 404": page(404),
    "a page with 400": page(400),
    "429": page(429),
    "429 in JSON": document({"reason": "busy"}, 429),
    "503": page(503),
    "500 in JSON": document({"reason": "broken"}, 500),
    "204": Reply(204),
    "302 to nowhere": Reply(302),
    "307 to itself": Reply(307, headers={"Location": "/admin/v2/again"}),
    "404 in other JSON": document({"message": "no route"}, 404),
    "404 that says it is JSON": Reply(404, b"<html>"),
    "nothing": Reply(200),
    "no content type": Reply(200, json.dumps(STATS).encode(), ""),
    "JSON that ends early": Reply(200, json.dumps(STATS).encode()[:-3]),
    "not UTF-8": Reply(200, b'{"a": "\xff"}'),
    "NaN": Reply(200, b'{"partitions": NaN}'),
    "depth": Reply(200, b"[" * 100_000),
    "a list": document([]),
    "null": document(None),
    "an object": document({}),
    "a number as text": document(STATS | {"currentLedgerSize": "100"}),
    "a truth as number": document(STATS | {"currentLedgerSize": True}),
    "no ledgers": document(without("ledgers")),
    "a ledger without entries": document(STATS | {"ledgers": [{"ledgerId": 1, "size": 0}]}),
    "a cursor without a position": document(STATS | {"cursors": {"s": {}}}),
    "a position that is none": document(STATS | {"lastConfirmedEntry": "here"}),
    "a cursor's position that is none": document(STATS | {"cursors": {"s": {"markDeletePosition": "a:b"}}}),
    "2^64": document(STATS | {"currentLedgerSize": 2**64}),
}


@pytest.mark.parametrize("reply", NO_ANSWER_OF_PULSAR.values(), ids=NO_ANSWER_OF_PULSAR.keys())
def test_what_pulsar_would_not_answer_counts_as_no_answer(place: FakeAdmin, reply: Reply) -> None:
    place.says = lambda path: reply if path.endswith(("internalStats", "again")) else cluster_says(path)
    with closing(admin(place)) as one, pytest.raises(SourceClusterUnreachable, match="GET"):
        one.partition_states(TOPIC, "s")


def test_only_a_404_with_pulsars_reason_is_a_missing_topic(place: FakeAdmin) -> None:
    place.says = lambda _: document({"reason": "Topic not found"}, 404)
    with closing(admin(place)) as one, pytest.raises(TopicMissing):
        one.partition_states(TOPIC, "s")


@pytest.mark.parametrize(
    "reply", [page(401), page(403), document({"reason": "no"}, 401), document({"reason": "x"}, 412)]
)
def test_who_refuses_us_is_not_taken_for_who_is_silent(place: FakeAdmin, reply: Reply) -> None:
    place.says = lambda _: reply
    with closing(admin(place)) as one:
        with pytest.raises(AccessRefused, match=str(reply.status)):
            one.partition_states(TOPIC, "s")
        assert one.cluster_names() == frozenset()


def partitioned(answered: set[int], alone: Callable[[int], Reply]) -> Callable[[str], Reply]:
    """A cluster with a topic of three partitions, whose statistics of all at once have only those `answered`."""
    parts = {f"{TOPIC}-partition-{number}": STATS for number in answered}
    none = {"stackTrace": [{"lineNumber": 1582}], "cause": None}
    together = {"metadata": {"partitions": 3}, "partitions": parts} if parts else none

    def says(path: str) -> Reply:
        if path.endswith("/partitions"):
            return document({"partitions": 3})
        if path.endswith("/partitioned-internalStats"):
            return document(together)
        return alone(int(path.removesuffix("/internalStats")[-1]))

    return says


@pytest.mark.parametrize("answered", [{0, 2}, {1}, set()])
def test_a_partition_that_the_statistics_of_all_leave_out_is_asked_by_itself(
    place: FakeAdmin, answered: set[int]
) -> None:
    place.says = partitioned(answered, lambda _: document(STATS))
    with closing(admin(place)) as one:
        assert list(one.partition_states(TOPIC, "s")) == [f"{TOPIC}-partition-{number}" for number in range(3)]
        place.says = partitioned(answered, lambda _: document({"reason": "busy"}, 500))
        with pytest.raises(SourceClusterUnreachable, match="partition-"):
            one.partition_states(TOPIC, "s")


def test_an_answer_without_end_is_given_up(place: FakeAdmin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("geo.replication.admin.MAX_BYTES", 1 << 20)
    place.says = lambda _: Reply(200, b"[" * 65536, endless=True)
    with closing(admin(place)) as one, pytest.raises(SourceClusterUnreachable, match="more than 1048576 bytes"):
        one.partition_states(TOPIC, "s")


def test_a_rotated_token_is_shown_with_the_next_question(place: FakeAdmin, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first")
    with closing(admin(place, token_file=file)) as one:
        one.partition_states(TOPIC, "s")
        file.write_text("second")
        one.partition_states(TOPIC, "s")
        file.write_text("")
        one.partition_states(TOPIC, "s")
    assert place.authorizations == ["Bearer first"] * 2 + ["Bearer second"] * 2


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*STATS, "partitions"]), inner),
    max_leaves=10,
)
