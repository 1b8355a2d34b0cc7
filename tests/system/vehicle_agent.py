"""An agent beside the sensors of its vehicle, and what is in its buffer."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from deploy.local import MosquittoBroker
from edge_agent.store.connection import DATABASE
from tests.edge_agent.process import AgentProcess, VehicleSensors
from tests.waiting import PATIENCE, wait_until


@pytest.fixture
def vehicle(tmp_path: Path) -> Iterator[VehicleSensors]:
    """A vehicle's own broker and what publishes there."""
    broker = MosquittoBroker("car", tmp_path / "car")
    broker.start()
    broker.wait(20 * PATIENCE)
    vehicle = VehicleSensors(broker.port)
    yield vehicle
    vehicle.close()
    broker.stop()


@contextmanager
def running(agent: AgentProcess) -> Iterator[AgentProcess]:
    agent.start()
    try:
        wait_until(lambda: "listening" in agent.log.read_text(encoding="utf-8"), 20)
        yield agent
    finally:
        agent.stop()


def stored(agent: AgentProcess) -> list[tuple[int, bytes]]:
    """The batches in the buffer, byte by byte."""
    with closing(sqlite3.connect(agent.config.parent / "buffer" / DATABASE)) as connection:
        return connection.execute("SELECT id, batch FROM batches WHERE batch IS NOT NULL ORDER BY id").fetchall()
