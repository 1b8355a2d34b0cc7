"""The parts of the buffer, each alone: counters, acknowledged ids, the identity that begins an epoch."""

import pytest
from hypothesis import strategies as st

from edge_agent.store.buffer import BufferFile
from edge_agent.store.database import BufferCounters
from tests.edge_agent.makers import fill, missing_in, open_buffer, options
from waybill.record import IntervalSet

NAMES = st.sampled_from(["acknowledged", "duplicates", "refused"])


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
