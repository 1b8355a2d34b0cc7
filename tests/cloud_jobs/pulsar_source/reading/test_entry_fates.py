"""Each entry that was not delivered has one fate, and unknown is never taken for one that need not come."""

from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.pulsar_source.entries import (
    BOUNDS,
    Chunk,
    Fate,
    Inquiry,
    InquiryBounds,
    LeftS,
    MissingAnswer,
    StoredEntry,
    fate_of,
    waits_for_transaction,
)
from cloud_jobs.pulsar_source.options import SourceClusterUnreachable
from cloud_jobs.pulsar_source.position import LedgerPosition

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
