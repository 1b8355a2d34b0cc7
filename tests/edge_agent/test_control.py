"""What a gateway says, true or forged: it shrinks only what was sent, pauses for a while, and stops nothing."""

from __future__ import annotations

import threading
import time
from itertools import pairwise
from pathlib import Path
from random import Random

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from edge_agent.clocks import CorrectionRules
from edge_agent.config import AgentSettings, UplinkSettings
from edge_agent.drain.drainer import FOLDER, MAX_LETTERS, ControlDeadLetters, Drainer, DrainParts
from edge_agent.drain.link_budget import LinkBudget
from edge_agent.drain.region import Pause, RegionProbe
from edge_agent.drain.sent_batches import MAX_RANGES, MAX_STREAMS, SentSeqs
from edge_agent.errors import LinkError
from edge_agent.store.clock_correction import ClockCorrector
from edge_agent.uplink.mqtt import control_events
from edge_agent.uplink.protocol import (
    MalformedControl,
    NoGateway,
    OutgoingBatch,
    PushedSettings,
    RefusedBatch,
    UplinkEvent,
)
from tests.edge_agent.makers import DEVICE, WALL_MS, fill, missing_in, open_buffer, pending_record
from tests.edge_agent.scripted_region import Road, ScriptedUplink, acks, drive, waiting
from tests.waiting import deadline_s
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


def test_an_acknowledgement_of_what_another_region_or_an_earlier_run_was_sent_changes_nothing(tmp_path: Path) -> None:
    sent = SentSeqs()
    sent.add("eu", 7, IntervalSet([(1, 100)]))
    assert not sent.take_acked("us", 7, IntervalSet([(1, 100)]))
    assert not sent.take_acked("eu", 8, IntervalSet([(1, 100)]))
    assert sent.take_acked("eu", 7, IntervalSet([(50, 10**12)])) == IntervalSet([(50, 100)])
    assert not sent.take_acked("eu", 7, IntervalSet([(50, 100)])), "once"
    assert not SentSeqs().take_acked("eu", 7, IntervalSet([(1, 100)]))


def test_what_one_region_took_is_not_owed_by_another() -> None:
    sent = SentSeqs()
    for region in ("eu", "us"):
        sent.add(region, 7, IntervalSet([(1, 100)]))
    sent.take_acked("eu", 7, IntervalSet([(1, 100)]))
    assert not sent.take_acked("us", 7, IntervalSet([(1, 100)]))


def test_what_is_remembered_of_sent_records_is_bounded() -> None:
    sent = SentSeqs()
    sent.add("eu", 1, IntervalSet.of(range(1, 4 * MAX_RANGES, 2)))
    taken = sent.take_acked("eu", 1, IntervalSet([(1, 10**6)]))
    assert len(taken.ranges) == MAX_RANGES
    for epoch in range(MAX_STREAMS + 1):
        sent.add("eu", epoch, IntervalSet([(1, 1)]))
    assert not sent.take_acked("eu", 0, IntervalSet([(1, 1)]))


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


def test_a_pause_of_no_number_is_none() -> None:
    pause = Pause(100.0)
    pause.request(1.0, float("nan"))
    pause.request(1.0, -5.0)
    assert pause.left_s(1.0) == 0


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
        failover={"after_s": 20, "jitter": 0, "return_after_s": 900},
    )
    first_us = next(at_s for at_s, region, _ in road.sent if region == "us")
    assert 20 <= first_us < 23
    assert waiting(buffer) == 0


def test_a_region_that_takes_batches_and_hangs_up_again_and_again_is_left(tmp_path: Path) -> None:
    buffer = open_buffer(tmp_path)
    fill(buffer, range(1, 11))

    def script(now_s: float, region: str, new: list[OutgoingBatch]) -> list[UplinkEvent]:
        if region == "eu" and new:
            raise LinkError("hung up")
        return acks(new)

    road = Road(script, 90)
    drive(buffer, road, ("eu", "us"), failover={"after_s": 20, "jitter": 0, "return_after_s": 900})
    assert any(region == "us" for _, region, _ in road.sent)
    assert waiting(buffer) == 0


def test_a_region_that_has_nothing_to_acknowledge_is_not_left(tmp_path: Path) -> None:
    buffer = open_buffer(tmp_path)
    fill(buffer, range(1, 11))
    seen: set[str] = set()

    def script(now_s: float, region: str, new: list[OutgoingBatch]) -> list[UplinkEvent]:
        seen.add(region)
        return acks(new)

    drive(buffer, Road(script, 300), ("eu", "us"))
    assert seen == {"eu"}
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


def test_a_region_without_a_gateway_is_left_for_the_next(tmp_path: Path) -> None:
    buffer = open_buffer(tmp_path)
    fill(buffer, range(1, 11))

    def script(_now_s: float, region: str, new: list[OutgoingBatch]) -> list[UplinkEvent]:
        return acks(new) if region == "us" else [NoGateway() for _ in new]

    drive(buffer, Road(script, 60), ("eu", "us"), failover={"after_s": 20, "jitter": 0})
    assert waiting(buffer) == 0


def test_an_error_in_one_control_message_is_a_dead_letter_and_the_next_is_served(tmp_path: Path) -> None:
    buffer = open_buffer(tmp_path)
    fill(buffer, range(1, 11))

    def explode(text: bytes) -> None:
        raise RecursionError("too deep")

    def script(now_s: float, region: str, new: list[OutgoingBatch]) -> list[UplinkEvent]:
        return [PushedSettings(b"a=[[[["), MalformedControl("ack", "no map", b"\xc1"), *acks(new)]

    drive(buffer, Road(script, 3), on_push=explode)
    assert waiting(buffer) == 0
    letters = sorted((tmp_path / FOLDER).iterdir())
    assert 2 <= len(letters) <= MAX_LETTERS
    assert letters[1].read_bytes().endswith(b"\n\xc1")
    assert b"RecursionError" in letters[0].read_bytes()


def test_dead_letters_are_bounded_in_number_and_size_and_all_are_counted(tmp_path: Path) -> None:
    letters = ControlDeadLetters(tmp_path)
    for number in range(MAX_LETTERS + 10):
        letters.add("ack", "r" * 10_000, bytes([number]) * 100_000)
    files = list((tmp_path / FOLDER).iterdir())
    assert (len(files), letters.count) == (MAX_LETTERS, MAX_LETTERS + 10)
    assert max(file.stat().st_size for file in files) < 70_000
    files[0].unlink()
    letters.add("ack", "r", b"x")
    assert len(list((tmp_path / FOLDER).iterdir())) == MAX_LETTERS, "who deletes one makes room"


HOSTILE_ACKS = [
    b"",
    b"\xc1",
    msgpack.packb({"epoch": float("inf")}),
    msgpack.packb({"epoch": 1, "ranges": [[1, 2**64 - 1]]}),
    msgpack.packb({"epoch": 1, "ranges": [[5, 1]]}),
    msgpack.packb({"epoch": "a", "ranges": 3}),
    msgpack.packb({"pause_s": float("nan")}),
    msgpack.packb({"refused": {"a": 1}}),
    b"\xdd\xff\xff\xff\xff",
    b"\x91" * 100_000,
]


@pytest.mark.parametrize("payload", HOSTILE_ACKS, ids=range(len(HOSTILE_ACKS)))
def test_a_hostile_acknowledgement_is_malformed_and_no_more(payload: bytes) -> None:
    (event,) = control_events("ack", payload)
    assert isinstance(event, MalformedControl)
    assert event.payload == payload


@given(st.sampled_from(["ack", "config", "x"]), st.binary(max_size=200) | st.builds(encode_ack, st.builds(Ack)))
def test_no_control_message_raises(kind: str, payload: bytes) -> None:
    assert control_events(kind, payload)


def test_a_refusal_keeps_its_pause() -> None:
    refused, pause = control_events("ack", encode_ack(Ack(7, IntervalSet([(1, 2)]), 5.0, "full")))
    assert isinstance(refused, RefusedBatch)
    assert isinstance(pause, Ack)
    assert (refused.reason, refused.is_too_large_to_send, pause.pause_s) == ("full", False, 5.0)


@pytest.mark.parametrize(
    ("is_too_large_to_send", "event", "counter"),
    [(True, "a batch is too large to send", "too_large_to_send"), (False, "the gateway refused a batch", "refused")],
)
def test_what_no_gateway_saw_is_not_counted_as_its_refusal(
    tmp_path: Path, is_too_large_to_send: bool, event: str, counter: str
) -> None:
    buffer = open_buffer(tmp_path)
    fill(buffer, range(1, 11))

    def script(now_s: float, region: str, new: list[OutgoingBatch]) -> list[UplinkEvent]:
        return [RefusedBatch("large", it.epoch, it.seqs, is_too_large_to_send) for it in new]

    with capture_logs() as lines:
        drive(buffer, Road(script, 2))
    assert event in {line["event"] for line in lines}
    counts = {name: buffer.counters.value(name) for name in ("refused", "too_large_to_send")}
    assert {name for name, value in counts.items() if value} == {counter}


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


def test_who_is_to_send_later_and_is_asked_for_no_pause_waits_all_the_same(tmp_path: Path) -> None:
    buffer = open_buffer(tmp_path)
    fill(buffer, range(1, 11))
    sent_s: list[float] = []

    def script(now_s: float, region: str, new: list[OutgoingBatch]) -> list[UplinkEvent]:
        sent_s.extend(now_s for _ in new)
        return [RefusedBatch(RefusalReason.SLOW_DOWN, it.epoch, it.seqs) for it in new]

    drive(buffer, Road(script, 20))
    assert len(set(sent_s)) <= 21
    assert waiting(buffer) > 0


def _slow_down(batch: OutgoingBatch) -> bytes:
    return encode_ack(Ack(batch.epoch, batch.seqs, 5.0, RefusalReason.SLOW_DOWN))


@pytest.mark.parametrize("error", [LinkError("no CA"), ValueError("embedded null byte"), RuntimeError("?")])
def test_a_probe_that_cannot_even_be_made_answers_no(error: Exception) -> None:
    def make() -> ScriptedUplink:
        raise error

    probe = RegionProbe(make, 1.0)
    deadline = deadline_s(5)
    while probe.held is None and time.monotonic() < deadline:
        time.sleep(0.001)
    assert probe.held is False


def test_the_preferred_region_is_looked_at_again_after_a_look_that_failed(tmp_path: Path) -> None:
    """An unreadable CA file: the look fails before there is a connection, and the next one still comes."""
    buffer = open_buffer(tmp_path)
    fill(buffer, range(1, 11))
    looks: list[float] = []

    class Away(ScriptedUplink):
        def open(self) -> None:
            raise LinkError("away")

    class Patient(Road):
        """A look has a thread of its own: the road's time stands still until it has answered."""

        def advance(self, seconds: float) -> None:
            probe = self.drainer.regions._probe if self.drainer else None
            until_s = deadline_s(5)
            while probe is not None and probe.held is None and time.monotonic() < until_s:
                time.sleep(0.001)
            super().advance(seconds)

    road = Patient(lambda now_s, region, new: acks(new), 400)
    settings = AgentSettings.model_validate(
        {
            "device": {"id": DEVICE},
            "uplinks": [{"region": region, "host": "127.0.0.1"} for region in ("eu", "us")],
            "failover": {"after_s": 5, "return_after_s": 30, "hold_s": 1, "jitter": 0},
        }
    )

    def make(uplink: UplinkSettings) -> ScriptedUplink:
        if threading.current_thread().name == "probe":
            looks.append(road.now_s)
            raise LinkError("certificates cannot be loaded")
        return Away(road, "eu") if uplink.region == "eu" else ScriptedUplink(road, "us")

    parts = DrainParts(
        buffer=buffer,
        clock_corrector=ClockCorrector(buffer, CorrectionRules(same_clock_us=1, drift_ppm=0, jump_us=1)),
        link_budget=LinkBudget(settings, buffer.counters),
        make_uplink=make,
        random=Random(1),
        dead_letters=ControlDeadLetters(tmp_path),
        monotonic_s=lambda: road.now_s,
        wait=road.wait,
    )
    road.drainer = Drainer(settings, parts)
    road.drainer.run()
    assert len(looks) >= 5
