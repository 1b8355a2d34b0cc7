"""What is sent next: live data first, the backlog's share, classes in order, the window, nothing twice at once."""

from typing import Any

from edge_agent.clocks import ClockJump
from edge_agent.config import DrainSettings
from edge_agent.drain.dispatcher import Dispatcher
from edge_agent.drain.drainer import MAX_NEW_BATCHES, DrainInbox
from edge_agent.store.batch_rows import StoredBatch, batch_row_id
from edge_agent.store.buffer import Buffer
from tests.edge_agent.makers import WALL_MS, fill, open_buffer, pending_record
from waybill.record import Batch, IntervalSet, decode

SETTINGS = DrainSettings(batch_records=100, merge_below_records=50, window=8, live_s=10, ack_timeout_s=5)


def dispatcher(buffer: Buffer, **changed: Any) -> Dispatcher:
    return Dispatcher(SETTINGS.model_copy(update=changed), buffer, range(3))


def drained(it: Dispatcher, now_s: float = 0.0, allowed: frozenset[int] | None = None) -> list[Batch]:
    batches = []
    while (outgoing := it.take_next(now_s, allowed)) is not None:
        batches.append(decode(outgoing.data))
    return batches


def seqs(batches: list[Batch]) -> list[int]:
    return [record.seq for batch in batches for record in batch.records]


def test_what_is_on_disk_is_sent_oldest_first_class_by_class_and_once(tmp_path):
    buffer = open_buffer(tmp_path)
    fill(buffer, range(1, 61), 1)
    fill(buffer, range(61, 71), 2)
    fill(buffer, range(71, 131), 1)
    it = dispatcher(buffer)
    assert seqs(drained(it)) == [*range(1, 61), *range(71, 131), *range(61, 71)]
    assert drained(it) == []


def test_small_neighbours_are_merged_up_to_the_limit_and_large_ones_go_as_they_are(tmp_path):
    buffer = open_buffer(tmp_path)
    for start in range(1, 301, 20):
        fill(buffer, range(start, start + 20))
    fill(buffer, range(301, 361))
    stored = buffer.load(buffer.read_after(0, 1, 100)[-1].id)
    it = dispatcher(buffer)
    outgoing = []
    while (batch := it.take_next(0.0)) is not None:
        outgoing.append(batch)
        it.on_acked(batch.epoch, batch.seqs)
    sizes = [batch.seqs.count for batch in outgoing]
    assert sizes == [100, 100, 100, 60]
    assert outgoing[-1].data == stored
    assert decode(outgoing[0].data).head == 360, "a batch that is made now says what is committed now"


def test_live_data_overtake_the_backlog_and_the_backlog_keeps_its_share(tmp_path):
    buffer = open_buffer(tmp_path)
    for start in range(0, 4000, 50):
        fill(buffer, range(start + 1, start + 51))
    it = dispatcher(buffer, backlog_share=0.25, window=1000)
    live = []
    for start in range(4000, 6000, 50):
        live.extend(buffer.commit([pending_record(number) for number in range(start + 1, start + 51)], WALL_MS))
    it.on_committed(0.0, live)
    batches = drained(it)
    fresh = [batch.records[0].seq > 4000 for batch in batches]
    last_fresh = max(place for place, is_fresh in enumerate(fresh) if is_fresh)
    share = 1 - sum(len(b.records) for b, f in zip(batches, fresh, strict=True) if f) / sum(
        len(batch.records) for batch in batches[: last_fresh + 1]
    )
    assert fresh[0]
    assert 0.1 < share < 0.4
    assert sorted(seqs(batches)) == list(range(1, 6001))


def test_urgent_live_data_go_before_other_live_data(tmp_path):
    buffer = open_buffer(tmp_path)
    it = dispatcher(buffer)
    it.on_committed(0.0, buffer.commit([pending_record(1, 2), pending_record(2, 1), pending_record(3, 0)], WALL_MS))
    assert [type(batch.records[0].body).__name__ for batch in drained(it)] == ["Event", "Position", "Signal"]


def test_the_window_bounds_what_is_unacknowledged_and_keeps_room_for_live_data(tmp_path):
    buffer = open_buffer(tmp_path)
    for start in range(0, 2000, 50):
        fill(buffer, range(start + 1, start + 51))
    it = dispatcher(buffer)
    assert len(drained(it)) == 6, "three in four of the window"
    it.on_committed(0.0, buffer.commit([pending_record(5000)], WALL_MS))
    assert len(drained(it)) == 1
    it.on_acked(buffer.epoch, IntervalSet([(1, 100)]))
    assert len(drained(it)) == 2
    assert it.in_flight == 7


def test_what_is_not_acknowledged_in_time_or_was_on_a_broken_connection_is_sent_again(tmp_path):
    buffer = open_buffer(tmp_path)
    fill(buffer, range(1, 61))
    it = dispatcher(buffer)
    first = drained(it, 0.0)
    assert it.retry_overdue(4.9) == 0
    assert it.retry_overdue(5.0) == 1
    assert drained(it, 5.0) == first
    it.on_disconnected()
    assert drained(it, 6.0) == first


def batches(count: int) -> list[StoredBatch]:
    return [StoredBatch(batch_row_id(1, number), 7, number, 1, 1, 10, 0) for number in range(1, count + 1)]


def test_new_batches_are_handed_over_once_and_more_than_fit_are_looked_for_on_disk():
    inbox = DrainInbox(lambda: 0)
    inbox.on_committed(batches(3))
    assert inbox.take_batches() == (batches(3), False)
    assert inbox.take_batches() == ([], False)
    inbox.on_committed(batches(MAX_NEW_BATCHES))
    inbox.on_committed(batches(1))
    taken, missed = inbox.take_batches()
    assert (len(taken), missed) == (MAX_NEW_BATCHES, True)
    inbox.on_missed()
    assert inbox.take_batches() == ([], True)


def test_whatever_is_put_in_wakes_the_drain_where_it_waits():
    inbox = DrainInbox(lambda: 41)
    woken: list[float] = []
    actions = [
        lambda: inbox.on_committed([]),
        inbox.on_missed,
        lambda: inbox.on_jump(ClockJump("boot", 0, 1, 2)),
        lambda: inbox.report(b"{}"),
        inbox.stop,
    ]
    inbox.set_uplink(lambda: woken.append(1))
    for number, action in enumerate(actions, 1):
        action()
        assert (inbox.take_wakeup(), inbox.take_wakeup(), len(woken)) == (True, False, number)
    inbox.set_uplink(None)
    inbox.stop()
    inbox.wait(lambda event, timeout_s: woken.append(event.is_set() and timeout_s), 3.0)
    assert (woken[-1], inbox.take_wakeup()) == (3.0, False)
    assert inbox.jumps == type(inbox.jumps)([(ClockJump("boot", 0, 1, 2), 41)])
