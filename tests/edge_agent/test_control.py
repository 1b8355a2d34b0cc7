"""What a gateway says, true or forged: it shrinks only what was sent, pauses for a while, and stops nothing."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.drain.region import Pause
from edge_agent.drain.sent_batches import SentSeqs
from edge_agent.uplink.mqtt import control_events
from edge_agent.uplink.protocol import MalformedControl, NoGateway, OutgoingBatch, PushedSettings, UplinkEvent
from tests.edge_agent.makers import WALL_MS, fill, missing_in, open_buffer, pending_record
from tests.edge_agent.scripted_region import Road, acks, drive, waiting
from waybill.record import Ack, IntervalSet, RefusalReason, encode_ack


def test_a_forged_acknowledgement_takes_only_what_was_sent(tmp_path: Path) -> None:
    buffer = open_buffer(tmp_path)
    for start in range(0, 3000, 100):
        fill(buffer, range(start + 1, start + 101))

    def forged(now_s: float, region: str, new: list[OutgoingBatch]) -> list[UplinkEvent]:
        return [Ack(buffer.epoch, IntervalSet([(1, 10**12)])), Ack(7, IntervalSet([(1, 10**12)]))]

    road = Road(forged, 1.0)
    drive(buffer, road, link={"bytes_per_s": 100, "burst_bytes": 1024}, drain={"batch_records": 100})
    sent = IntervalSet(bounds for _, _, batch in road.sent for bounds in batch.seqs.ranges)
    assert 0 < sent.count < 3000
    assert waiting(buffer) >= 3000 - sent.count
    assert missing_in(buffer) == 0


@given(st.lists(st.tuples(st.sampled_from(["send", "ack"]), st.integers(1, 60), st.integers(0, 20)), max_size=40))
def test_the_records_taken_are_always_a_part_of_those_sent_and_never_taken_twice(
    steps: list[tuple[str, int, int]],
) -> None:
    sent, outstanding = SentSeqs(), IntervalSet()
    for what, first, length in steps:
        seqs = IntervalSet([(first, first + length)])
        if what == "send":
            sent.add("eu", 7, seqs)
            outstanding |= seqs
        else:
            assert sent.take_acked("eu", 7, seqs) == outstanding & seqs
            outstanding -= seqs


def test_a_pause_holds_back_all_but_urgent_records_and_ends(tmp_path: Path) -> None:
    buffer = open_buffer(tmp_path)
    fill(buffer, [1], 1)
    urgent_at: list[float] = []

    def script(now_s: float, region: str, new: list[OutgoingBatch]) -> list[UplinkEvent]:
        if now_s > 30 and not urgent_at:
            urgent_at.append(now_s)
            assert road.drainer
            road.drainer.inbox.on_committed(buffer.commit([pending_record(2, 0), pending_record(3, 1)], WALL_MS))
        return [*acks(new), Ack(pause_s=86_400.0)]

    road = Road(script, 500)
    drive(buffer, road, drain={"max_pause_s": 200})
    moments = {batch.seqs.first: at_s for at_s, _, batch in road.sent}
    assert moments[2] - urgent_at[0] < 2, "the urgent event goes at once"
    assert 200 <= moments[3] < 203, "the rest when the longest pause is over, whatever the gateway repeats"


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0, 1e9) | st.just(float("inf")), st.booleans()), max_size=60))
def test_no_series_of_requests_pauses_longer_than_the_bound_without_a_batch_in_between(
    steps: list[tuple[float, float, bool]],
) -> None:
    pause, now_s, silent_since_s = Pause(100.0), 0.0, 0.0
    for wait_s, asked_s, sends in steps:
        now_s += wait_s
        if pause.left_s(now_s) == 0:
            if sends:
                pause.on_sent(now_s)
            silent_since_s = now_s
        pause.request(now_s, asked_s)
        assert pause.until_s <= max(silent_since_s, now_s if pause.left_s(now_s) == 0 else silent_since_s) + 100.0


@pytest.mark.parametrize("ack_timeout_s", [2.0, 15.0, 60.0])
def test_a_silent_region_is_left_in_time_however_often_batches_are_sent_again(
    tmp_path: Path, ack_timeout_s: float
) -> None:
    buffer = open_buffer(tmp_path)
    fill(buffer, range(1, 11))
    road = Road(lambda now_s, region, new: acks(new) if region == "us" else [], 60)
    drive(
        buffer,
        road,
        ("eu", "us"),
        drain={"ack_timeout_s": ack_timeout_s},
        failover={"after_s": 20, "return_after_s": 900},
    )
    first_us = next(at_s for at_s, region, _ in road.sent if region == "us")
    assert 20 <= first_us < 23
    assert waiting(buffer) == 0


def test_without_a_gateway_one_batch_is_tried_ever_more_seldom_and_with_one_all_of_it_goes(tmp_path: Path) -> None:
    buffer = open_buffer(tmp_path)
    for first in range(1, 6001, 300):
        fill(buffer, range(first, first + 300))
    states: list[tuple[bool, bool]] = []

    def script(now_s: float, _region: str, new: list[OutgoingBatch]) -> list[UplinkEvent]:
        assert road.drainer
        states.append((road.drainer.health.gateway_absent, road.drainer.health.is_healthy))
        return [NoGateway() for _ in new] if now_s < 300 else acks(new)

    road = Road(script, 450)
    drive(buffer, road)
    in_vain = [at_s for at_s, _, _ in road.sent if at_s < 300]
    assert len(in_vain) < 8 + 20, "the first burst, then one at a time"
    assert (True, True) not in states, "not healthy without a gateway"
    assert waiting(buffer) == 0


def test_an_error_in_one_control_message_is_counted_and_the_next_is_served(tmp_path: Path) -> None:
    buffer = open_buffer(tmp_path)
    fill(buffer, range(1, 11))

    def explode(text: bytes) -> None:
        raise RecursionError("too deep")

    def script(now_s: float, region: str, new: list[OutgoingBatch]) -> list[UplinkEvent]:
        return [PushedSettings(b"a=[[[["), MalformedControl("ack", "no map"), *acks(new)]

    road = Road(script, 3)
    drive(buffer, road, on_push=explode)
    assert waiting(buffer) == 0
    assert road.drainer
    assert road.drainer.control_unreadable >= 2


def test_what_is_to_be_sent_again_later_is_no_refusal_and_waits_for_its_pause(tmp_path: Path) -> None:
    buffer = open_buffer(tmp_path)
    fill(buffer, range(1, 11))
    sent_s: list[float] = []

    def script(now_s: float, region: str, new: list[OutgoingBatch]) -> list[UplinkEvent]:
        sent_s.extend(now_s for _ in new)
        if len(sent_s) > 20:  # more often than max_refusals
            return acks(new)
        return [event for it in new for event in control_events("ack", _slow_down(it))]

    drive(buffer, Road(script, 200))
    assert waiting(buffer) == 0
    assert buffer.counters.value("refused") == 0
    assert all(later - earlier >= 5 for earlier, later in pairwise(sorted(set(sent_s))))


def _slow_down(batch: OutgoingBatch) -> bytes:
    return encode_ack(Ack(batch.epoch, batch.seqs, 5.0, RefusalReason.SLOW_DOWN))
