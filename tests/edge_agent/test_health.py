"""Health says when the near side loses records or cannot store them."""

from pathlib import Path

import pytest

from edge_agent.agent import Agent, buffer_state, health_state
from edge_agent.config import AgentSettings
from tests.edge_agent.makers import DEVICE
from waybill.mqtt.mqtt_client import MqttMessage


def agent(folder: Path, floor_bytes: int = 0) -> Agent:
    buffer = {"path": str(folder), "free_space_floor_bytes": floor_bytes}
    return Agent(
        AgentSettings.model_validate(
            {"device": {"id": DEVICE}, "uplinks": [{"region": "eu", "host": "127.0.0.1"}], "buffer": buffer}
        )
    )


def take(it: Agent) -> None:
    it.intake.receive(MqttMessage(1, 1, False, "vehicle/other", b"x"), 0.0)
    it.intake.commit(0.0)


def test_records_that_are_dropped_for_want_of_space_are_said_for_a_minute(tmp_path, monkeypatch):
    it = agent(tmp_path, floor_bytes=1 << 60)
    assert buffer_state(it) == "stores"
    take(it)
    assert it.buffer.counters.value("lost_space") == 1
    assert buffer_state(it) == "drops records"
    assert it.retention.dropped_at_s is not None
    it.retention.dropped_at_s -= 61
    assert buffer_state(it) == "stores"
    it.buffer.close()


@pytest.mark.parametrize("state", ["drops records", "cannot commit"])
@pytest.mark.parametrize("uplink", ["acknowledges", "unknown"])
def test_an_agent_that_does_not_store_is_not_healthy_whatever_the_uplink_says(tmp_path, monkeypatch, state, uplink):
    it = agent(tmp_path)
    it.intake_loop.connected = True
    monkeypatch.setattr("edge_agent.agent.is_alive", lambda _: True)
    monkeypatch.setattr("edge_agent.agent.uplink_state", lambda _: uplink)
    assert health_state(it)["healthy"] is (True if uplink == "acknowledges" else None)
    monkeypatch.setattr("edge_agent.agent.buffer_state", lambda _: state)
    assert health_state(it)["healthy"] is False
    it.buffer.close()
