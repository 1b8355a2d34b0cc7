"""The parts of the buffer, each alone: counters, acknowledged ids, the identity that begins an epoch."""

import sqlite3
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.store.batch_rows import AckedSeqs, StoredBatch, TransactionTotals, batch_row_id
from edge_agent.store.buffer import BufferFile
from edge_agent.store.connection import connect_sqlite, create_tables
from edge_agent.store.database import BufferCounters
from tests.edge_agent.makers import fill, missing_in, open_buffer, options
from waybill.record import IntervalSet

NAMES = st.sampled_from(["acknowledged", "duplicates", "refused"])


@given(st.lists(st.tuples(NAMES, st.integers(1, 9), st.booleans())), st.lists(st.tuples(NAMES, st.integers(0, 9))))
def test_a_counter_is_what_was_stored_and_what_was_added_since_whenever_a_transaction_comes(added, counted):
    counters, connection, total = BufferCounters(), sqlite3.connect(":memory:", isolation_level=None), Counter[str]()
    create_tables(connection)
    for name, increase, lazily in added:
        counters.add(name, increase, lazily=lazily)
        total[name] += increase
    assert counters.is_due == any(not lazily for _, _, lazily in added)
    increases = Counter(counters.unstored)
    for name, increase in counted:
        increases[name] += increase
        total[name] += increase
    counters.store(connection, increases)
    counters.on_stored(increases)
    assert not counters.is_due
    stored = dict(connection.execute("SELECT name, value FROM counters").fetchall())
    assert all(counters.value(name) == count == stored.get(name, 0) for name, count in total.items())


def test_what_a_failed_transaction_should_have_stored_is_counted_until_one_succeeds():
    counters = BufferCounters()
    counters.add("refused", 2)
    assert (counters.value("refused"), counters.stored, counters.is_due) == (2, {}, True)


def test_only_a_batch_that_is_acknowledged_whole_and_in_its_epoch_is_covered():
    acked = AckedSeqs()
    batch = StoredBatch(batch_row_id(1, 11), 7, 20, 1, 10, 100, 0)
    assert not acked
    acked.add(8, IntervalSet([(1, 100)]))
    acked.add(7, IntervalSet([(1, 19)]))
    assert not acked.cover(batch)
    acked.add(7, IntervalSet([(20, 20)]))
    assert acked.cover(batch)
    acked.clear()
    assert not acked.cover(batch)


def test_pruning_an_epoch_that_the_file_does_not_have_touches_nothing():
    acked, changes, connection = AckedSeqs(), TransactionTotals(), connect_sqlite(Path(":memory:"))
    create_tables(connection)
    acked.add(9, IntervalSet([(1, 10**12)]))
    acked.prune(connection, {1: 7}, changes)
    assert changes == TransactionTotals()


def test_a_transaction_that_fails_leaves_totals_counters_and_acknowledgements_as_they_were(tmp_path):
    buffer = open_buffer(tmp_path)
    fill(buffer, range(1, 11))
    buffer.acknowledge(buffer.epoch, IntervalSet([(1, 10)]))
    buffer.counters.add("refused", 1)

    def fail(_connection, changes):
        changes.counts["messages_dead_lettered"] += 1
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError):
        buffer.edit(fail)
    assert (buffer.depth()[1].records, buffer.counters.value("messages_dead_lettered")) == (10, 0)
    buffer.prune_acknowledged()
    assert (buffer.depth()[1].records, buffer.counters.value("refused"), missing_in(buffer)) == (0, 1, 0)


def test_the_file_that_was_left_goes_on_and_one_without_its_lineage_begins_an_epoch_once(tmp_path):
    def opened() -> int:
        file = BufferFile(tmp_path, options(), BufferCounters())
        database = file.open()
        file.identity.renew(database)
        database.close()
        return database.epoch

    epoch = opened()
    assert opened() == epoch
    (tmp_path / "lineage.json").unlink()
    other = opened()
    assert other > epoch
    assert opened() == other
