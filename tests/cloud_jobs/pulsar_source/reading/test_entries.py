"""Many stored entries are asked for together, over connections that stay open."""

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.pulsar_source.admin import SourceAdmin
from cloud_jobs.pulsar_source.entries import Chunk, LeftS, StoredEntry, ask
from cloud_jobs.pulsar_source.options import (
    AccessRefused,
    SourceCluster,
    SourceConnectionRefused,
)
from cloud_jobs.pulsar_source.position import LedgerPosition
from tests.cloud_jobs.pulsar_source.addresses import Reply, address
from waybill.pulsar.pulsar_client import PulsarAccess

_TIMEOUT_S = 60


class FunctionStore:
    """Entries as a function gives them; `asked`: for which ones it was called."""

    def __init__(self, entry: Callable[[LedgerPosition], StoredEntry | None]) -> None:
        self._entry = entry
        self.asked: list[LedgerPosition] = []

    def entry(self, place: LedgerPosition) -> StoredEntry | None:
        self.asked.append(place)
        return self._entry(place)

    def sent(
        self, first: LedgerPosition, last: LedgerPosition, _: LeftS
    ) -> Iterator[tuple[LedgerPosition, StoredEntry]]:
        raise NotImplementedError


def places(count: int) -> list[LedgerPosition]:
    return [LedgerPosition(7, entry) for entry in range(count)]


@given(count=st.integers(0, 400), missing=st.integers(0, 400))
def test_each_entry_is_asked_for_once_and_answered_in_its_place(count: int, missing: int) -> None:
    def entry(place: LedgerPosition) -> StoredEntry | None:
        return None if place.entry == missing else StoredEntry(chunk=Chunk("m", place.entry, count))

    store = FunctionStore(entry)
    assert list(ask(store, places(count))) == [(place, entry(place)) for place in places(count)]
    assert sorted(store.asked) == places(count)


@pytest.mark.parametrize("error", [AccessRefused, SourceConnectionRefused])
def test_what_is_said_of_the_cluster_is_raised_and_no_entry_is_taken_for_unreadable(error: type[Exception]) -> None:
    def entry(_: LedgerPosition) -> StoredEntry:
        raise error("hq", "asking", "403")

    with pytest.raises(error):
        list(ask(FunctionStore(entry), places(9)))


@pytest.mark.parametrize("content", [b"", b"x", b"x" * 60_000])
def test_short_content_is_read_so_that_the_connection_stays_open(content: bytes) -> None:
    reply = Reply(200, content, headers={"X-Pulsar-Message-ID": "7:1", "X-Pulsar-Marker-Type": "10"})
    with address() as place, closing(_admin(place.url)) as admin:
        place.says = lambda _: reply
        for entry in places(10):
            headers = admin.entry_headers("persistent://t/n/x", entry)
            assert headers is not None
            assert StoredEntry.from_headers(headers).marker
        assert len(place.asked) == 10
        assert len(place.connections) == 1


def _admin(url: str) -> SourceAdmin:
    return SourceAdmin(
        SourceCluster(name="hq", service_url="pulsar://127.0.0.1:1", admin_url=url), PulsarAccess(), _TIMEOUT_S
    )
