from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.pulsar_source.cluster.partition_state import LedgerInfo, PartitionState, Role, reader_prefix
from cloud_jobs.pulsar_source.position import BEGINNING, WHOLE_ENTRY, LedgerPosition

#   ledger 3: 10 entries, ledger 5: none, ledger 7: 4 entries and open
STATE = PartitionState(
    (LedgerInfo(3, 10, 1000), LedgerInfo(5, 0, 0), LedgerInfo(7, 4, 100)), LedgerPosition(7, 3), LedgerPosition(3, 4)
)
within = st.builds(LedgerPosition, st.sampled_from([3, 5, 7]), st.integers(-1, 9), st.just(WHOLE_ENTRY))


def test_entries_are_counted_over_ledgers():
    assert STATE.entries_between(BEGINNING, STATE.last) == 14
    assert STATE.entries_between(LedgerPosition(3, 4), LedgerPosition(7, 0)) == 6
    assert STATE.entries_between(LedgerPosition(3, 9), LedgerPosition(7, -1)) == 0
    assert STATE.entries_between(LedgerPosition(7, 3), STATE.last) == 0


def test_an_entry_of_which_messages_are_left_counts_as_waiting():
    assert STATE.entries_between(LedgerPosition(7, 3, 0), STATE.last) == 1
    assert STATE.has_entries_after(LedgerPosition(7, 3, 0))
    assert not STATE.has_entries_after(LedgerPosition(7, 3))


@given(within, within, within)
def test_neighbouring_stretches_add_up(one: LedgerPosition, two: LedgerPosition, three: LedgerPosition) -> None:
    first, middle, last = sorted([one, two, three])
    parts = STATE.entries_between(first, middle) + STATE.entries_between(middle, last)
    assert parts == STATE.entries_between(first, last)


def test_the_open_ledger_is_counted_by_its_newest_entry():
    stats = {
        "lastConfirmedEntry": "9:41",
        "currentLedgerSize": 4200,
        "ledgers": [{"ledgerId": 8, "entries": 5, "size": 50}, {"ledgerId": 9, "entries": 0, "size": 0}],
        "lastLedgerCreatedTimestamp": "2026-01-05T10:00:00.000Z",
        "cursors": {
            "s": {"markDeletePosition": "8:4"},
            "s.owner.4f-reader-09afb31c77": {"markDeletePosition": "9:41"},
            "s.candidate.6d-reader-09afb31c77": {"markDeletePosition": "9:41"},
            "other.owner.5e-reader-09afb31c77": {"markDeletePosition": "9:41"},
        },
    }
    state = PartitionState.from_stats(stats, "s")
    assert state.ledgers == (LedgerInfo(8, 5, 50), LedgerInfo(9, 42, 4200))
    assert (state.cursor, state.owners, state.candidates) == (
        LedgerPosition(8, 4),
        frozenset({"4f"}),
        frozenset({"6d"}),
    )
    assert state.ledger_created_at == "2026-01-05T10:00:00.000Z"
    assert PartitionState.from_stats(stats, "other").cursor is None


@pytest.mark.parametrize("name", ["s.owner", "s.candidate", "s.owner.owner", "s.x", "s."])
@pytest.mark.parametrize("role", get_args(Role))
def test_the_readers_of_a_query_are_not_those_of_a_subscription_with_a_longer_name(name: str, role: Role) -> None:
    reader = f"{reader_prefix(name, role)}4f-reader-09afb31c77"
    durable = f"{reader_prefix('s', role)}mine"
    stats = {"lastConfirmedEntry": "9:41", "currentLedgerSize": 0, "ledgers": []}
    cursors = {one: {"markDeletePosition": "9:41"} for one in ("s", name, reader, durable)}
    ours, theirs = (PartitionState.from_stats(stats | {"cursors": cursors}, one) for one in ("s", name))
    assert not ours.owners | ours.candidates
    assert theirs.owners | theirs.candidates == {"4f"}


def test_what_was_compacted_is_known():
    stats = {
        "lastConfirmedEntry": "9:41",
        "currentLedgerSize": 4200,
        "ledgers": [],
        "cursors": {
            "s": {"markDeletePosition": "8:4"},
            "__compaction": {"markDeletePosition": "8:20"},
        },
    }
    state = PartitionState.from_stats(stats, "s")
    assert state.compacted == LedgerPosition(8, 20)
    assert STATE.compacted == BEGINNING


def gone(start: LedgerPosition, cursor: LedgerPosition | None) -> bool:
    return PartitionState((LedgerInfo(3, 10, 1000),), LedgerPosition(3, 9), cursor).loss_after(start) is not None


def test_a_removed_ledger_is_no_loss_when_only_we_moved_the_cursor():
    assert not gone(LedgerPosition(2, 5), LedgerPosition(2, 5))
    assert not gone(
        LedgerPosition(2, 5), LedgerPosition(3, -1)
    )  # the broker moves a cursor out of the ledger that it removes


def test_a_removed_ledger_is_a_loss_when_the_subscription_is_gone_or_its_cursor_was_moved_by_others():
    assert gone(LedgerPosition(2, 5), None)
    assert gone(LedgerPosition(2, 5), LedgerPosition(3, 2))
    assert gone(LedgerPosition(1, 5), LedgerPosition(2, 9))  # a broker can leave a cursor in a ledger that it removed


def test_what_is_still_stored_is_no_loss():
    assert not gone(LedgerPosition(3, -1), None)
    assert not gone(LedgerPosition(3, 4), LedgerPosition(3, 8))
    assert not gone(BEGINNING, None)
