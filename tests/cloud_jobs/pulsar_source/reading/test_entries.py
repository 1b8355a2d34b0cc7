"""Many stored entries are asked for together, over connections that stay open."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.pulsar_source.cluster.admin import SourceAdmin
from cloud_jobs.pulsar_source.errors import AccessRefused, SourceClusterUnreachable, SourceConnectionRefused
from cloud_jobs.pulsar_source.options import SourceCluster
from cloud_jobs.pulsar_source.position import LedgerPosition
from cloud_jobs.pulsar_source.reading.entries import Chunk, LeftS, StoredEntry, ask
from tests.cloud_jobs.pulsar_source.addresses import Reply, address
from waybill.pulsar.pulsar_client import PulsarAccess

_TIMEOUT_S = 60
SILENT = SourceClusterUnreachable("hq", "asking", "nothing came")


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


def test_several_are_asked_for_at_one_time():
    a_second_one = threading.Event()

    def entry(_: LedgerPosition) -> StoredEntry:
        if len(store.asked) > 1:
            a_second_one.set()
        assert a_second_one.wait(_TIMEOUT_S)
        return StoredEntry(marker=True)

    store = FunctionStore(entry)
    assert len(list(ask(store, places(56)))) == 56


def test_who_stops_to_listen_asks_for_few_more():
    store = FunctionStore(lambda _: StoredEntry())
    asked = ask(store, places(10_000))
    assert next(asked) == (LedgerPosition(7, 0), StoredEntry())
    assert len(store.asked) < 20


@given(silent=st.integers(0, 300))
def test_after_one_that_is_not_answered_no_more_are_waited_for(silent: int) -> None:
    def entry(place: LedgerPosition) -> StoredEntry:
        if place.entry == silent:
            raise SILENT
        return StoredEntry()

    store = FunctionStore(entry)
    answers = dict(ask(store, places(400)))
    assert answers.pop(LedgerPosition(7, silent)) is SILENT
    assert set(answers.values()) == {StoredEntry()} or silent == 0
    assert set(places(silent - 128)) <= answers.keys()
    assert sorted(store.asked) == sorted([*answers, LedgerPosition(7, silent)])
    assert len(store.asked) <= silent + 130


def test_who_has_no_time_left_asks_for_nothing():
    store = FunctionStore(lambda _: StoredEntry())
    assert not list(ask(store, places(9), lambda: 0.0))
    assert not store.asked


@pytest.mark.parametrize("error", [AccessRefused, SourceConnectionRefused])
def test_what_is_said_of_the_cluster_is_raised_and_no_entry_is_taken_for_unreadable(error: type[Exception]) -> None:
    def entry(_: LedgerPosition) -> StoredEntry:
        raise error("hq", "asking", "403")

    with pytest.raises(error):
        list(ask(FunctionStore(entry), places(9)))


def test_an_address_where_nobody_listens_any_more_is_another_error_than_an_answer_that_broke_off():
    broken = Reply(200, b"{", headers={"X-Pulsar-Message-ID": "7:1"}, breaks_off=True)
    with address() as place, closing(_admin(place.url)) as admin:
        place.says = lambda _: broken
        with pytest.raises(SourceClusterUnreachable) as raised:
            admin.entry_headers("persistent://t/n/x", LedgerPosition(7, 1))
        assert not isinstance(raised.value, SourceConnectionRefused)
        assert len(place.asked) == 2
    with closing(_admin(place.url)) as admin, pytest.raises(SourceConnectionRefused):
        admin.entry_headers("persistent://t/n/x", LedgerPosition(7, 1))


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


def test_long_content_is_left_where_it_is():
    reply = Reply(200, b"x" * 1000, headers={"X-Pulsar-Message-ID": "7:1"}, endless=True)
    with address() as place, closing(_admin(place.url)) as admin:
        place.says = lambda _: reply
        assert admin.entry_headers("persistent://t/n/x", LedgerPosition(7, 1)) is not None


def _admin(url: str) -> SourceAdmin:
    return SourceAdmin(
        SourceCluster(name="hq", service_url="pulsar://127.0.0.1:1", admin_url=url), PulsarAccess(), _TIMEOUT_S
    )
