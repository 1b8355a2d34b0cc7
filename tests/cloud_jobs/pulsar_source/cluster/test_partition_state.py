from cloud_jobs.pulsar_source.position import (
    BEGINNING,
    LedgerInfo,
    LedgerPosition,
    PartitionState,
)

#   ledger 3: 10 entries, ledger 5: none, ledger 7: 4 entries and open
STATE = PartitionState(
    (LedgerInfo(3, 10, 1000), LedgerInfo(5, 0, 0), LedgerInfo(7, 4, 100)), LedgerPosition(7, 3), LedgerPosition(3, 4)
)


def test_entries_are_counted_over_ledgers():
    assert STATE.entries_between(BEGINNING, STATE.last) == 14
    assert STATE.entries_between(LedgerPosition(3, 4), LedgerPosition(7, 0)) == 6
    assert STATE.entries_between(LedgerPosition(3, 9), LedgerPosition(7, -1)) == 0
    assert STATE.entries_between(LedgerPosition(7, 3), STATE.last) == 0


def test_an_entry_of_which_messages_are_left_counts_as_waiting():
    assert STATE.entries_between(LedgerPosition(7, 3, 0), STATE.last) == 1
    assert STATE.has_entries_after(LedgerPosition(7, 3, 0))
    assert not STATE.has_entries_after(LedgerPosition(7, 3))


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
