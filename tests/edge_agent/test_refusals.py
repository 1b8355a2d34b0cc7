"""What a region will not take is isolated: the rest goes on, nothing is lost, and an operator sees it."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent.config import AgentSettings, DrainSettings
from edge_agent.drain.dispatcher import UNACKNOWLEDGED, Dispatcher
from edge_agent.inspection import exported_lines, read_status
from edge_agent.store.buffer import Buffer
from edge_agent.uplink.protocol import OutgoingBatch
from tests.edge_agent.makers import DEVICE, fill, open_buffer
from waybill.record import decode

SETTINGS = DrainSettings(
    batch_records=100, merge_below_records=50, window=8, ack_timeout_s=5, max_refusals=3, refusal_backoff_s=10
)


class RefusingRegion:
    """Acknowledges what it takes, refuses batches with one of the `poison` names, is silent about the `dropped`."""

    def __init__(self, poison: set[int], dropped: Iterable[int] = ()) -> None:
        self.poison, self.dropped = poison, set(dropped)
        self.taken: list[int] = []
        self.tried: list[tuple[float, int]] = []

    def answer(self, it: Dispatcher, outgoing: OutgoingBatch, now_s: float) -> None:
        seqs = {record.seq for record in decode(outgoing.data).records}
        self.tried.extend((now_s, seq) for seq in seqs & (self.poison | self.dropped))
        if seqs & self.poison:
            it.on_refused(now_s, outgoing.epoch, outgoing.seqs, "too-large")
        elif not seqs & self.dropped:
            self.taken.extend(seqs)
            it.on_acked(outgoing.epoch, outgoing.seqs)


def made(buffer: Buffer, **changed: float) -> Dispatcher:
    return Dispatcher(SETTINGS.model_copy(update=changed), buffer, range(3))


def run(it: Dispatcher, region: RefusingRegion, until_s: int, from_s: int = 0) -> None:
    for now_s in range(from_s, until_s):
        while (outgoing := it.take_next(float(now_s))) is not None:
            region.answer(it, outgoing, float(now_s))
        it.retry_overdue(float(now_s))


def state(buffer: Buffer) -> dict[str, Any]:
    buffer.prune_acknowledged()
    return read_status(agent_settings(buffer))


def agent_settings(buffer: Buffer) -> AgentSettings:
    folder = str(buffer.path.parent)
    return AgentSettings.model_validate(
        {"device": {"id": DEVICE}, "uplinks": [{"region": "eu", "host": "127.0.0.1"}], "buffer": {"path": folder}}
    )


def filled(folder: Path, blocks: int = 10, size: int = 60) -> Buffer:
    buffer = open_buffer(folder)
    for number in range(blocks):
        fill(buffer, range(number * size + 1, (number + 1) * size + 1))
    return buffer


def test_a_refused_batch_is_tried_a_bounded_number_of_times_and_the_rest_is_delivered_meanwhile(tmp_path):
    buffer = filled(tmp_path)
    it, region = made(buffer), RefusingRegion({130})
    run(it, region, 30)
    assert sorted(region.taken) == [seq for seq in range(1, 601) if not 121 <= seq <= 180]
    run(it, region, 200, 30)
    tries = [at_s for at_s, _ in region.tried]
    assert tries[:3] == [0.0, 10.0, 30.0], "the pause is twice as long each time"
    assert len(tries) <= 3 + 6, "then the halves have one try each: 60 records, 30, 15, 8, 4, 2, 1"
    found = state(buffer)
    assert (found["dead_letter_batches"], found["dead_letter_records"], found["depth_records"]) == (1, 1, 1)
    assert (found["gaps"], found["oldest_age_s"]) == (0, None)
    assert sorted(region.taken) == [seq for seq in range(1, 601) if seq != 130]
    assert it.retrying == 0


def test_a_batch_that_is_passed_over_is_refused_and_one_that_is_only_late_is_not(tmp_path):
    buffer = filled(tmp_path, blocks=3)
    it, region = made(buffer), RefusingRegion(set(), dropped={70})
    run(it, region, 100)
    assert [at_s for at_s, _ in region.tried][:2] == [0.0, 6.0], "nothing was sent after it, so it may only be late"
    assert state(buffer)["dead_letter_batches"] == 0
    for second in range(100, 300):
        fill(buffer, [second * 60])
        it.on_missed()
        run(it, region, second + 1, second)
    assert state(buffer)["dead_letter_records"] == 1
    assert len(region.tried) < 40
    (line,) = map(json.loads, exported_lines(agent_settings(buffer)))
    assert (line["seq"], line["dead_letter"]) == (70, UNACKNOWLEDGED)


def test_on_the_word_of_a_region_that_takes_nothing_nothing_is_dead_lettered(tmp_path):
    buffer = filled(tmp_path, blocks=40)
    it, region = made(buffer), RefusingRegion(set(range(1, 2401)))
    run(it, region, 400)
    assert (it.region_refuses_all, it.retrying) == (True, 8)
    assert {seq // 60 for _, seq in region.tried if seq % 60} == set(range(8)), "no more than the window is tried"
    assert state(buffer)["dead_letter_batches"] == 0
    region.poison.clear()
    it.on_connected("eu")
    run(it, region, 401, 400)
    assert sorted(region.taken) == list(range(1, 2401)), "another region may take it at once"


def test_a_dead_letter_outlives_a_restart_is_exported_and_is_requeued(tmp_path):
    buffer = filled(tmp_path, blocks=3)
    run(made(buffer), RefusingRegion({70, 71}), 200)
    buffer.close()
    buffer = open_buffer(tmp_path)
    again = RefusingRegion({70})
    run(made(buffer), again, 100)
    assert again.tried == []
    lines = [json.loads(line) for line in exported_lines(agent_settings(buffer))]
    assert [(line["seq"], line["dead_letter"]) for line in lines] == [(70, "too-large"), (71, "too-large")]
    buffer.requeue_dead_letters()
    healthy = RefusingRegion(set())
    run(made(buffer), healthy, 100)
    assert sorted(healthy.taken) == [70, 71]
    found = state(buffer)
    assert (found["dead_letter_batches"], found["depth_records"], found["gaps"]) == (0, 0, 0)
    assert found["counters"]["batches_dead_lettered"] == 2


@settings(max_examples=12, deadline=None)
@given(poison=st.sets(st.integers(1, 400), max_size=6), size=st.integers(5, 90))
def test_every_record_is_delivered_or_kept_whatever_is_refused(tmp_path_factory, poison, size):
    buffer = filled(tmp_path_factory.mktemp("refused"), blocks=400 // size + 2, size=size)
    it, region = made(buffer), RefusingRegion(poison)
    run(it, region, 30)
    fill(buffer, [9_000])
    it.on_missed()
    run(it, region, 300, 30)
    found = state(buffer)
    kept = {json.loads(line)["seq"] for line in exported_lines(agent_settings(buffer))}
    assert len(region.taken) == len(set(region.taken))
    assert set(region.taken) | kept == set(range(1, buffer.head + 1))
    assert found["gaps"] == 0
    assert kept == {seq for seq in poison if seq <= buffer.head}, "and nothing else"
    assert found["depth_records"] == found["dead_letter_records"] == len(kept)
