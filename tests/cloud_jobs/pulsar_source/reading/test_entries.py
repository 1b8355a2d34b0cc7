"""Many stored entries are asked for together, over connections that stay open."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.pulsar_source.admin import SourceAdmin
from cloud_jobs.pulsar_source.entries import (
    BOUNDS,
    Chunk,
    Fate,
    Inquiry,
    InquiryBounds,
    LeftS,
    MissingAnswer,
    StoredEntry,
    ask,
    fate_of,
    waits_for_transaction,
)
from cloud_jobs.pulsar_source.entry_store import EntryStream, decode, frame
from cloud_jobs.pulsar_source.options import (
    AccessRefused,
    SourceCluster,
    SourceClusterUnreachable,
    SourceConnectionRefused,
)
from cloud_jobs.pulsar_source.position import LedgerPosition
from tests.cloud_jobs.pulsar_source.addresses import Reply, address
from tests.fuzz.targets.pulsar import CLUSTER, LAST, BrokerConnection
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


SILENT = SourceClusterUnreachable("hq", "asking", "nothing came")
UNREADABLE = StoredEntry(readable=False)
MARKER, MESSAGE, ABORTED = StoredEntry(marker=True), StoredEntry(), StoredEntry(aborted=True)
PART, ENDING = StoredEntry(chunk=Chunk("m", 0, 2)), StoredEntry(chunk=Chunk("m", 1, 2))
GIVEN_TO_CONSUMERS = [MESSAGE, PART, ENDING]


class PartlyShownStore:
    """Entries by number, and how each of them is shown: by the admin REST, only when it is sent, or not at all."""

    def __init__(self, entries: dict[int, StoredEntry], shown: Mapping[int, StoredEntry | Exception]) -> None:
        self.entries, self._shown = entries, shown
        self.singly: list[int] = []
        self.sends = True

    def entry(self, place: LedgerPosition) -> StoredEntry | None:
        self.singly.append(place.entry)
        answer = self._shown.get(place.entry, self.entries.get(place.entry))
        if isinstance(answer, Exception):
            raise answer
        return answer

    def sent(
        self, first: LedgerPosition, last: LedgerPosition, _: LeftS
    ) -> Iterator[tuple[LedgerPosition, StoredEntry]]:
        if not self.sends:
            raise SILENT
        for number, entry in sorted(self.entries.items()):
            if first.entry <= number and entry in GIVEN_TO_CONSUMERS:
                yield LedgerPosition(7, number), entry
                if number >= last.entry:
                    return


def fates(store: PartlyShownStore, *, bounds: InquiryBounds = BOUNDS, left_s: float = 60.0) -> list[Fate]:
    places = [LedgerPosition(7, number) for number in reversed(store.entries)]
    account = Inquiry(store, lambda: left_s, bounds).entry_fates(places)
    return [account.fates[place] for place in reversed(places)]


@pytest.mark.parametrize(
    ("answer", "fate"),
    [
        (None, Fate.REMOVED),
        (MissingAnswer.UNKNOWN, Fate.UNKNOWN),
        (MissingAnswer.WITHHELD, Fate.WITHHELD),
        (UNREADABLE, Fate.UNKNOWN),
        (MARKER, Fate.MARKER),
        (StoredEntry(marker=True, in_open_transaction=True), Fate.MARKER),
        (ABORTED, Fate.ABORTED),
        (StoredEntry(in_open_transaction=True), Fate.HELD),
        (StoredEntry(in_open_transaction=True, chunk=Chunk("m", 0, 2)), Fate.HELD),
        (MESSAGE, Fate.MESSAGE),
        (PART, Fate.PART),
        (StoredEntry(chunk=Chunk("m", -1, 2)), Fate.PART),
        (StoredEntry(chunk=Chunk("m", 7, 2)), Fate.PART),
        (ENDING, Fate.ENDING),
    ],
)
def test_an_answer_is_one_fate(answer: StoredEntry | MissingAnswer | None, fate: Fate) -> None:
    assert fate_of(answer) is fate


@given(
    entries=st.lists(st.sampled_from([MARKER, ABORTED, *GIVEN_TO_CONSUMERS]), min_size=1, max_size=40),
    hidden=st.dictionaries(st.integers(0, 39), st.sampled_from([UNREADABLE, SILENT])),
    single=st.integers(0, 40),
    sends=st.booleans(),
)
def test_what_is_not_shown_is_what_it_is_or_unknown_and_takes_no_neighbour_with_it(
    entries: list[StoredEntry], hidden: dict[int, StoredEntry | Exception], single: int, sends: bool
) -> None:
    store = PartlyShownStore(dict(enumerate(entries)), hidden)
    store.sends = sends
    found = fates(store, bounds=InquiryBounds(single=single))
    for number, (entry, fate) in enumerate(zip(entries, found, strict=True)):
        passed_over = {Fate.WITHHELD} if sends and entry not in GIVEN_TO_CONSUMERS else set()
        unknown = {Fate.UNKNOWN} if number in hidden and (not sends or entry not in GIVEN_TO_CONSUMERS) else set()
        assert fate in {fate_of(entry)} | passed_over | unknown
    assert all(store.singly.count(number) <= 1 for number in hidden)


HELD, HELD_ABORTED = StoredEntry(in_open_transaction=True), StoredEntry(in_open_transaction=True, aborted=True)


@pytest.mark.parametrize(
    ("entries", "shown", "held"),
    [
        ([MARKER, MARKER], {}, False),
        ([ABORTED, MARKER], {}, False),
        ([HELD, HELD, MARKER], {}, True),
        ([HELD, *[HELD_ABORTED] * 5002, MARKER], {}, True),
        ([HELD, UNREADABLE], {}, True),
        ([HELD, HELD], {1: SILENT}, True),
        ([MARKER, UNREADABLE], {}, True),
        ([PART, UNREADABLE], {}, True),
        ([UNREADABLE, PART], {}, False),
        ([], {}, False),
    ],
)
def test_the_newest_that_is_no_marker_shows_whether_all_is_held_back_and_unknown_waits(
    entries: list[StoredEntry], shown: dict[int, Exception], held: bool
) -> None:
    store = PartlyShownStore(dict(enumerate(entries)), shown)
    end = LedgerPosition(7, len(entries) - 1)
    assert waits_for_transaction(store, ((7, len(entries)),), end, LedgerPosition(7, -1), lambda: 60.0) is held
    assert len(store.singly) < 30


@pytest.mark.parametrize("data", [b"\x08", b"\x0a\x05ab", b"\x80" * 11, b"\x0b", b"\x09abc"])
def test_what_breaks_off_or_is_no_protobuf_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="at byte"):
        decode(data)


def test_an_entry_that_announces_more_metadata_than_a_message_may_have_is_refused_before_it_is_read() -> None:
    length = 100 << 20
    command = frame(9, {1: 1})[8:]
    start = (4 + len(command) + 4 + length).to_bytes(4) + len(command).to_bytes(4) + command + length.to_bytes(4)
    stream = EntryStream(cast("Any", BrokerConnection(start)), CLUSTER, "persistent://a/b/c")
    with pytest.raises(ValueError, match="bytes of metadata in an entry"):
        list(stream.receive_entries(LAST))
