"""An idle agent between a real Mosquitto, a gateway and a real Pulsar: its heartbeats arrive at the region's topic."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from edge_agent.agent import Agent
from edge_agent.config import AgentSettings
from tests.edge_agent.process import DEVICE, VehicleSensors
from tests.system.gateway_region import PulsarRegion
from tests.system.gateway_servers import region  # noqa: F401 - a fixture
from tests.system.vehicle_agent import vehicle  # noqa: F401 - a fixture
from tests.waiting import wait_until
from waybill.record import Header, read_header

pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.own_servers]


def test_an_idle_agent_s_heartbeat_arrives_at_the_region_s_topic(
    region: PulsarRegion,  # noqa: F811
    vehicle: VehicleSensors,  # noqa: F811
    tmp_path: Path,
) -> None:
    tables: dict[str, Any] = {
        "device": {"id": DEVICE, "tenant": "idle"},
        "intake": {"host": "127.0.0.1", "port": vehicle.port},
        "buffer": {"path": tmp_path / "buffer"},
        "uplinks": [{"region": "eu", "host": "127.0.0.1", "port": region.broker.port}],
    }
    settings = AgentSettings.model_validate(tables)
    # sooner than the settings allow, so that nobody waits a minute for it
    often = settings.model_copy(update={"drain": settings.drain.model_copy(update={"heartbeat_s": 0.5})})
    began_us = time.time_ns() // 1000

    def heartbeats() -> list[Header]:
        found = region.messages("batches-partition-0", "batches-partition-1")
        headers = [read_header(payload) for payload, about in found if about["tenant"] == "idle"]
        return [header for header in headers if header.is_heartbeat]

    with region.gateway("heartbeats") as gateway:
        agent = Agent(often)
        agent.start()
        try:
            wait_until(lambda: len(heartbeats()) >= 2, 60)
            assert agent.drainer.dispatcher.in_flight == 0
            assert agent.link_budget.usage.day_bytes > 0
        finally:
            agent.stop()
        first, *_, last = heartbeats()
        assert (first.device, first.epoch, first.head) == (DEVICE, agent.buffer.epoch, 0)
        grace_us = round(settings.time.grace_s * 1_000_000)
        assert began_us <= first.stated_us + grace_us < last.stated_us + grace_us <= time.time_ns() // 1000
        wait_until(lambda: gateway.status().heartbeats_persisted == len(heartbeats()), 10)
        assert gateway.status().in_flight == 0
        assert gateway.status().acks_published == 0
