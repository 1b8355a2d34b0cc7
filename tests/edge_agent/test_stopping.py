"""Stopping and reloading: an old thread never reaches a buffer that somebody else may have by then."""

import threading

import pytest

from edge_agent.agent import Agent
from edge_agent.errors import StoreInUse
from edge_agent.intake import intake_loop
from tests.edge_agent.makers import WALL_MS, pending_record
from tests.edge_agent.test_daemon import settings as agent_settings


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
