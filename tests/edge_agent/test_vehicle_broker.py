"""The vehicle's own broker: how it is set up, and what is seen of what it lost."""

import json
from collections import deque

import pytest
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
    KNOWN_FOR_US,
    MARKED_EVERY_US,
    MAX_WAIT_US,
    SHOWN_S,
    UNPROVEN,
    WAITED,
    ArrivalMarker,
    BrokerWatch,
    broker_conf,
    marker_topic,
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


S = 1_000_000


def test_only_the_newest_marker_is_a_proof_and_only_of_the_time_when_it_was_published():
    marker = ArrivalMarker(is_needed=True)
    marker.on_connected(0, resumed=True)
    assert (marker.are_known(0), marker.state(0), marker.is_due(0)) == (False, WAITED, True)
    marker.on_published(b"1", 0)
    for other in (b"", b"0"):
        marker.on_received(other)
    assert (marker.are_known(S), marker.is_due(S)) == (False, False)
    marker.on_received(b"1")
    assert (marker.are_known(KNOWN_FOR_US), marker.state(KNOWN_FOR_US)) == (True, KNOWN)
    assert (marker.are_known(KNOWN_FOR_US + 1), marker.is_due(MARKED_EVERY_US)) == (False, True)
    marker.on_published(b"2", KNOWN_FOR_US)
    marker.on_received(b"1")
    assert not marker.are_known(KNOWN_FOR_US + 1), "it came twice"


@pytest.mark.parametrize(("is_closed", "lasts_s"), [(False, 310), (True, 5)])
def test_markers_that_the_broker_refuses_or_keeps_become_rare_and_are_shown(is_closed, lasts_s):
    marker, count = ArrivalMarker(is_needed=True), 0
    marker.on_connected(0, resumed=False)
    for now_us in range(0, 320 * S, S):
        assert (marker.state(now_us) == UNPROVEN) == (now_us > lasts_s * S)
        if marker.is_due(now_us):
            marker.on_published(b"%d" % now_us, now_us)
            count += 1
            if is_closed:
                marker.on_connected(now_us, resumed=True)
    assert count == 6
    marker.on_received(b"%d" % (lasts_s * S))
    assert marker.state(lasts_s * S) == KNOWN
    marker.on_published(b"again", 700 * S)
    marker.on_refused(701 * S)
    marker.on_connected(702 * S, resumed=True)
    assert (marker.state(702 * S), marker.is_due(701 * S + MAX_WAIT_US - 1)) == (UNPROVEN, False)
    assert marker.is_due(701 * S + MAX_WAIT_US)


def test_an_agent_that_needs_no_arrivals_publishes_nothing():
    marker = ArrivalMarker(is_needed=False)
    marker.on_connected(0, resumed=True)
    assert (marker.is_due(9 * S), marker.are_known(9 * S), marker.state(9 * S)) == (False, True, KNOWN)


def test_the_topic_of_a_session_can_be_published_to():
    assert marker_topic("edge-agent/+#") == "waybill/agent/arrived/edge-agent---"


@given(
    st.integers(0, 99),
    st.lists(st.tuples(st.sampled_from([0.1, 9.0, 31.0]), st.integers(0, 5), st.integers(0, 5), st.integers(0, 9))),
)
def test_no_message_is_timed_that_waited_at_the_broker(backlog, turns):
    """A turn of the loop: how long it takes, messages meanwhile, messages that the window lets through, 0: the
    connection ends."""
    marker, queue, now_us = ArrivalMarker(is_needed=True), deque([(-600 * S, b"")] * backlog), 0
    marker.on_connected(now_us, resumed=True)
    for lasts_s, count, window, end in [*turns, (MAX_WAIT_US / S, 0, 10_000, 1)]:
        queue.extend([(now_us, b"")] * count)
        now_us += round(lasts_s * S)
        if not end:
            marker.on_connected(now_us, resumed=True)
        if marker.is_due(now_us):
            queue.append((now_us, b"%d" % now_us))
            marker.on_published(b"%d" % now_us, now_us)
        for _ in range(min(window, len(queue))):
            arrived_us, payload = queue.popleft()
            if payload:
                marker.on_received(payload)
            elif marker.are_known(now_us):
                assert now_us - arrived_us <= KNOWN_FOR_US
    assert marker.are_known(now_us), "the queue is empty"
