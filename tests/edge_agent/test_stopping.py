"""Stopping and reloading: an old thread never reaches a buffer that somebody else may have by then."""

import threading
from random import Random

import pytest
from structlog.testing import capture_logs

from edge_agent.agent import Agent
from edge_agent.config import IntakeSettings
from edge_agent.errors import StoreInUse
from edge_agent.intake import intake_loop
from tests.edge_agent.intake_parts import IntakeHarness
from tests.edge_agent.makers import WALL_MS, pending_record
from tests.edge_agent.test_daemon import settings as agent_settings
from tests.gateway.sides import FakeBroker
from tests.waiting import wait_until


def test_an_agent_whose_commit_takes_longer_than_it_may_keeps_the_buffer_to_itself(tmp_path, monkeypatch):
    """What `reload` does then is to end the process; here the commit ends after all."""
    agent = Agent(agent_settings(tmp_path))
    began, may_end = threading.Event(), threading.Event()

    def slow(_self: object) -> None:
        agent.buffer.commit([pending_record(1)], WALL_MS)
        began.set()
        assert may_end.wait(10)
        agent.buffer.commit([pending_record(2)], WALL_MS)

    monkeypatch.setattr(intake_loop.IntakeLoop, "_listen", slow)
    agent.start()
    assert began.wait(10)
    assert not agent.stop(0.05)
    with pytest.raises(StoreInUse):
        Agent(agent_settings(tmp_path))
    may_end.set()
    assert agent.stop(10)
    again = Agent(agent_settings(tmp_path))
    assert (again.buffer.head, again.buffer.epoch) == (2, agent.buffer.epoch)
    assert again.stop()


def test_a_local_broker_that_never_was_there_is_not_reached_and_one_that_goes_is_lost(tmp_path):
    broker = FakeBroker()
    broker.suback = b"\x01"
    parts = IntakeHarness(tmp_path)
    configured = IntakeSettings(port=broker.port, backoff_first_s=0.01, backoff_max_s=0.01)
    loop = intake_loop.IntakeLoop(configured, parts.record_intake, Random(1))
    with capture_logs() as lines:
        thread = threading.Thread(target=loop.run)
        thread.start()

        def said(event):
            broker.turn()
            return event in {line["event"] for line in lines}

        wait_until(lambda: said("listening"), every_s=0.001)
        assert not said("local broker lost")
        broker.hang_up()
        wait_until(lambda: said("local broker lost"), every_s=0.001)
        assert not said("local broker not reached")
        broker.close()
        wait_until(lambda: "local broker not reached" in {line["event"] for line in lines})
        loop.stop()
        thread.join(10)
    assert not thread.is_alive()
