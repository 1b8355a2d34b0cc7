"""The vehicle's own broker: how it is set up, and what is seen of what it lost."""

import json

from hypothesis import given
from hypothesis import strategies as st

from edge_agent.config import IntakeSettings
from edge_agent.store.database import BufferCounters
from edge_agent.vehicle_broker import (
    DECLARED_EVERY_S,
    DROPPED,
    FORGOT,
    KEEPS,
    SHOWN_S,
    BrokerWatch,
    broker_conf,
)
from tests.edge_agent.makers import WALL_MS


def test_the_printed_configuration_keeps_what_comes_and_listens_at_one_address():
    lines = [*broker_conf(IntakeSettings())]
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
