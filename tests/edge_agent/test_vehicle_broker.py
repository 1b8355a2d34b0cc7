"""The vehicle's own broker: how it is set up, and what is seen of what it lost."""

import json
from collections import deque
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from edge_agent.config import IntakeSettings
from edge_agent.store.database import BufferCounters
from edge_agent.vehicle_broker import (
    DECLARED_EVERY_S,
    DROPPED,
    FORGOT,
    KEEPS,
    KNOWN,
    MAX_LATE_S,
    REFUSED,
    REFUSED_WAIT_S,
    SHOWN_S,
    UNPROVEN,
    UNPROVEN_S,
    WAITED,
    ArrivalMarker,
    BrokerWatch,
    broker_conf,
)
from tests.edge_agent.makers import WALL_MS


def test_the_printed_configuration_keeps_what_comes_and_listens_at_one_address():
    lines = broker_conf(IntakeSettings()).splitlines()
    assert [line for line in lines if line.startswith("listener")] == ["listener 1883 127.0.0.1"]
    assert {"persistence true", "max_queued_messages 0", "allow_anonymous true", "sys_interval 10"} <= set(lines)


def test_what_was_dropped_is_a_reason_for_a_while_and_so_is_a_session_that_is_gone():
    watch = BrokerWatch(BufferCounters())
    watch.on_connected(0.0, resumed=False, was_connected=False)
    watch.on_dropped(b"0", 1.0, WALL_MS)
    assert watch.state(1.0) == KEEPS
    watch.on_dropped(b"2000", 10.0, WALL_MS)
    assert (watch.state(10.0), watch.dropped) == (DROPPED, 2000)
    assert watch.state(10.0 + SHOWN_S) == KEEPS
    watch.on_connected(700.0, resumed=True, was_connected=True)
    assert watch.state(700.0) == KEEPS
    watch.on_connected(701.0, resumed=False, was_connected=True)
    assert (watch.state(701.0), watch.sessions_lost) == (FORGOT, 1)


@given(st.booleans(), st.lists(st.integers(0, 50) | st.sampled_from([b"", b"-1", b"x", b"9" * 400, None, True, False])))
def test_what_the_broker_drops_is_declared_once_however_often_agent_and_broker_start(is_resumed, steps):
    """A step: the broker's count (which begins anew with the broker), a start of the agent (None), or a declaration
    that is stored or not."""
    counters = BufferCounters()
    watch = BrokerWatch(counters)
    watch.on_connected(0.0, resumed=is_resumed, was_connected=False)
    last, dropped, declared, now_s = None if not is_resumed else 0, 0, 0, 0.0
    for step in steps:
        now_s += 2 * SHOWN_S
        rise = 0
        if step is None:
            watch = BrokerWatch(counters)
            watch.on_connected(now_s, resumed=True, was_connected=True)
            # not seen before, so all of it may have been the agent's
            last = 0 if last is None else last
        elif isinstance(step, bool):
            declaration = watch.take_declaration(now_s, lambda: WALL_MS)
            assert (declaration is not None) == (dropped > declared)
            assert watch.take_declaration(now_s + DECLARED_EVERY_S - 1, lambda: WALL_MS) is None or not declaration
            if declaration and step:
                declared += json.loads(declaration[0].attributes)["messages"]
                for name, increase in declaration[1].items():
                    counters.add(name, increase)
        else:
            watch.on_dropped(step if isinstance(step, bytes) else b"%d" % step, now_s, WALL_MS)
            if isinstance(step, int):
                rise = 0 if last is None else step - last if step >= last else step
                last, dropped = step, dropped + rise
        assert watch.state(now_s) == (DROPPED if rise else KEEPS)
        assert watch.dropped == (last or 0)
    declaration = watch.take_declaration(now_s + 2 * DECLARED_EVERY_S, lambda: WALL_MS)
    assert declared + (json.loads(declaration[0].attributes)["messages"] if declaration else 0) == dropped


def resumed_marker() -> tuple[ArrivalMarker, bytes]:
    marker = ArrivalMarker(Random(7), is_needed=True)
    marker.on_connected(0.0, resumed=True)
    nonce = marker.take_publication(0.0)
    assert nonce is not None
    assert (marker.are_known, marker.state(0.0), marker.take_publication(1.0)) == (False, WAITED, None)
    return marker, nonce


def test_only_the_newest_marker_that_comes_back_in_time_is_a_proof():
    marker, nonce = resumed_marker()
    for other in (b"", b"0" * 16):
        marker.on_received(other, 1.0)
    assert not marker.are_known
    marker.on_received(nonce, 1.0 + MAX_LATE_S)
    assert not marker.are_known, "what follows a late marker is as late"
    again = marker.take_publication(1.0 + MAX_LATE_S) or b""
    marker.on_received(nonce, 2.0 + MAX_LATE_S)
    assert not marker.are_known
    marker.on_received(again, 2.0 + MAX_LATE_S)
    assert (marker.are_known, marker.state(2.0 + UNPROVEN_S)) == (True, KNOWN)
    marker.on_connected(1000.0, resumed=True)
    marker.on_received(again, 1000.0)
    assert not marker.are_known, "a marker of another connection"


def test_a_marker_that_the_broker_refuses_or_keeps_is_shown_before_and_after_messages_waited():
    marker = ArrivalMarker(Random(7), is_needed=True)
    marker.on_connected(0.0, resumed=False)
    assert marker.take_publication(0.0)
    marker.on_answer(0.0, is_accepted=False)
    assert (marker.are_known, marker.state(0.0)) == (True, REFUSED)
    marker.on_connected(1.0, resumed=True)
    assert (marker.take_publication(2.0), marker.are_known, marker.state(2.0)) == (None, False, REFUSED)
    assert marker.take_publication(REFUSED_WAIT_S), "the broker may close the connection for each of them"
    marker, _ = resumed_marker()
    for now_s in (1.0, 2.0, 3.0):
        assert marker.state(now_s) == WAITED
        marker.on_connected(now_s, resumed=True)
        published = marker.take_publication(now_s)
    assert (published, marker.state(3.0)) == (None, REFUSED), "no answer at all"
    marker, _ = resumed_marker()
    count = sum(marker.take_publication(float(now_s)) is not None for now_s in range(int(UNPROVEN_S)))
    assert count < 10
    assert (marker.are_known, marker.state(UNPROVEN_S)) == (False, UNPROVEN)


def test_an_agent_that_needs_no_arrivals_publishes_nothing():
    marker = ArrivalMarker(Random(7), is_needed=False)
    marker.on_connected(0.0, resumed=True)
    marker.on_full_window(1.0)
    marker.on_stall(9.0)
    assert (marker.take_publication(9.0), marker.are_known, marker.state(9.0)) == (None, True, KNOWN)


LATEST_S = 30.0


@given(
    st.integers(0, 99),
    st.lists(
        st.tuples(st.sampled_from([0.1, 3.0, 4.9, 60.0]), st.integers(0, 5), st.integers(0, 5), st.integers(0, 9))
    ),
)
def test_no_message_is_timed_that_waited_at_the_broker(backlog, turns):
    """A turn of the loop: how long it takes, messages meanwhile, messages that the window lets through, 0: the
    connection ends."""
    marker, queue, now_s = ArrivalMarker(Random(7), is_needed=True), deque([(-600.0, b"")] * backlog), 0.0
    marker.on_connected(now_s, resumed=True)
    for lasts_s, count, window, end in [*turns, *[(0.1, 0, 10_000, 1)] * 3]:
        queue.extend([(now_s, b"")] * count)
        now_s += lasts_s
        if not end:
            marker.on_connected(now_s, resumed=True)
        elif lasts_s > MAX_LATE_S:
            marker.on_stall(now_s)
        if nonce := marker.take_publication(now_s):
            queue.append((now_s, nonce))
            marker.on_answer(now_s, is_accepted=True)
        for _ in range(min(window, len(queue))):
            arrived_s, payload = queue.popleft()
            if payload:
                marker.on_received(payload, now_s)
            elif marker.are_known:
                assert now_s - arrived_s < LATEST_S
        if queue:
            marker.on_full_window(now_s)
    assert marker.are_known, "the queue is empty"
