"""The buffer: names without a hole, what was acknowledged is gone, the rest is there, and a restart changes nothing."""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from edge_agent.store.buffer import BufferFile
from edge_agent.store.database import BufferCounters
from edge_agent.store.retention import drop_batch, oldest_rows
from tests.edge_agent.makers import (
    WALL_MS,
    fill,
    missing_in,
    open_buffer,
    options,
    pending_record,
    sent_and_declared,
    stored_bytes,
)
from tests.examples import examples
from waybill.record import IntervalSet, decode


class BufferLaws(RuleBasedStateMachine):
    """Any order of commits, acknowledgements, evictions and restarts."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.buffer = open_buffer(self.folder)
        self.epoch = self.buffer.epoch
        self.waiting = IntervalSet()
        self.lost = IntervalSet()
        self.head = 0
        self.acknowledged = 0

    def teardown(self) -> None:
        self.buffer.close()
        shutil.rmtree(self.folder)

    @rule(classes=st.lists(st.integers(0, 2), min_size=1, max_size=12))
    def commit(self, classes):
        waiting = [pending_record(self.head + place, index) for place, index in enumerate(classes, 1)]
        blocks = self.buffer.commit(waiting, WALL_MS)
        assert blocks[0].first == self.head + 1
        assert blocks[-1].last == self.head + len(classes)
        self.head += len(classes)
        self.waiting |= IntervalSet([(self.head - len(classes) + 1, self.head)])

    @rule(first=st.integers(1, 80), length=st.integers(0, 40), settle=st.booleans())
    def acknowledge(self, first, length, settle):
        names = IntervalSet([(first, first + length)])
        self.buffer.acknowledge(self.epoch, names)
        self.buffer.acknowledge(self.epoch + 1, IntervalSet([(1, 10**6)]))
        gone = names & (self.waiting | self.lost)
        self.acknowledged += gone.count
        self.waiting, self.lost = self.waiting - names, self.lost - names
        self.buffer.prune_acknowledged()

    @rule(class_index=st.integers(0, 2))
    def drop_the_oldest(self, class_index):
        def change(connection, changes):
            for row in oldest_rows(connection, class_index, 1):
                self.lose(decode(stored_bytes(self.buffer, row.id)).header.record_seqs)
                drop_batch(connection, row, self.buffer.database.owner_of(row.id), "quota", changes)

        self.buffer.edit(change)

    @rule(clean=st.booleans())
    def restart(self, clean):
        if clean:
            self.buffer.close()
        else:
            self.buffer.database.close()
        self.buffer = open_buffer(self.folder)

    def lose(self, names):
        self.waiting, self.lost = self.waiting - names, self.lost | names

    @invariant()
    def what_waits_is_what_was_not_acknowledged(self):
        assert sent_and_declared(self.buffer) == (self.waiting, self.lost)
        assert sum(one.records for one in self.buffer.depth().values()) == self.waiting.count
        assert (self.buffer.epoch, self.buffer.head) == (self.epoch, self.head)
        assert self.buffer.counters.value("acknowledged") == self.acknowledged

    @invariant()
    def the_ring_knows_the_last_messages(self):
        # Within one commit, names go by class: one commit's messages (12) may stand in another order.
        for number in range(max(1, self.head - 49 + 12), self.head + 1):
            assert pending_record(number).arrival in self.buffer.recent


TestBufferLaws = BufferLaws.TestCase
TestBufferLaws.settings = settings(max_examples=examples(30), stateful_step_count=20, deadline=None)


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


def test_the_filters_of_the_session_survive_a_restart_and_a_rebuild(tmp_path):
    buffer = open_buffer(tmp_path)
    assert buffer.subscriptions() == set()
    buffer.set_subscriptions({"former/#", "vehicle/#"})
    buffer.set_subscriptions({"vehicle/#", "tracks/+"})
    buffer.close()
    again = open_buffer(tmp_path)
    assert again.subscriptions() == {"vehicle/#", "tracks/+"}
    again.repair(again.generation)
    assert again.subscriptions() == {"vehicle/#", "tracks/+"}
