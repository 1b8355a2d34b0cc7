"""Many stored entries are asked for together, over connections that stay open."""

from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.pulsar_source.admin import SourceAdmin
from cloud_jobs.pulsar_source.entries import Fate, IdleTimeout, entry_fates
from cloud_jobs.pulsar_source.options import (
    AccessRefused,
    SourceCluster,
    SourceClusterUnreachable,
    SourceConnectionRefused,
)
from cloud_jobs.pulsar_source.position import LedgerPosition
from tests.cloud_jobs.pulsar_source.addresses import Reply, address
from waybill.pulsar.pulsar_client import PulsarAccess

_TIMEOUT_S = 60


def places(count: int) -> list[LedgerPosition]:
    return [LedgerPosition(7, entry) for entry in range(count)]


@given(silent=st.lists(st.booleans(), max_size=400))
def test_each_entry_is_asked_for_once_and_one_that_is_not_answered_takes_no_neighbour_with_it(
    silent: list[bool],
) -> None:
    asked: list[LedgerPosition] = []

    def fate_at(place: LedgerPosition) -> Fate:
        asked.append(place)
        if silent[place.entry]:
            raise SourceClusterUnreachable("hq", "asking", "nothing came")
        return list(Fate)[place.entry % len(Fate)]

    fates = entry_fates(fate_at, places(len(silent)), IdleTimeout(_TIMEOUT_S))
    expected = [None if is_silent else list(Fate)[entry % len(Fate)] for entry, is_silent in enumerate(silent)]
    assert fates == dict(zip(places(len(silent)), expected, strict=True))
    assert sorted(asked) == places(len(silent))


@pytest.mark.parametrize("error", [AccessRefused, SourceConnectionRefused])
def test_what_is_said_of_the_cluster_is_raised_and_no_entry_is_taken_for_unreadable(error: type[Exception]) -> None:
    def fate_at(_: LedgerPosition) -> Fate:
        raise error("hq", "asking", "403")

    with pytest.raises(error):
        entry_fates(fate_at, places(9), IdleTimeout(_TIMEOUT_S))


@pytest.mark.parametrize("content", [b"", b"x", b"x" * 60_000])
def test_short_content_is_read_so_that_the_connection_stays_open(content: bytes) -> None:
    reply = Reply(200, content, headers={"X-Pulsar-Message-ID": "7:1", "X-Pulsar-Marker-Type": "10"})
    with address() as place:
        place.says = lambda _: reply
        cluster = SourceCluster(name="hq", service_url="pulsar://127.0.0.1:1", admin_url=place.url)
        with closing(SourceAdmin(cluster, PulsarAccess(), _TIMEOUT_S)) as admin:
            shown = [admin.entry_headers("persistent://t/n/x", entry) for entry in places(10)]
        assert {Fate.from_headers(headers) for headers in shown} == {Fate.NOT_SENT}
        assert len(place.asked) == 10
        assert len(place.connections) == 1


@pytest.mark.parametrize(
    ("headers", "fate"),
    [
        (None, Fate.REMOVED),
        ({}, Fate.STORED),
        ({"marker-type": "10", "txn-uncommitted": "true"}, Fate.NOT_SENT),
        ({"txn-aborted": "true", "txn-uncommitted": "true"}, Fate.NOT_SENT),
        ({"txn-uncommitted": "true", "chunk-id": "1", "num-chunks-from-msg": "2"}, Fate.HELD),
        ({"chunk-id": "1", "num-chunks-from-msg": "2"}, Fate.CHUNK_END),
        ({"chunk-id": "0", "num-chunks-from-msg": "2"}, Fate.STORED),
        ({"chunk-id": "0", "num-chunks-from-msg": "1"}, Fate.STORED),
        ({"chunk-id": "-1", "num-chunks-from-msg": "9" * 5000}, Fate.STORED),
    ],
)
def test_an_answer_is_one_fate(headers: dict[str, str] | None, fate: Fate) -> None:
    shown = None if headers is None else {f"x-pulsar-{name}": value for name, value in headers.items()}
    assert Fate.from_headers(shown) is fate
