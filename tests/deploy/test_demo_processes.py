"""When a vehicle of the demo is ready."""

from __future__ import annotations

from pathlib import Path

from deploy.demo.processes import has_buffer
from edge_agent.agent import Agent
from edge_agent.config import AgentSettings
from waybill.settings import load


def test_an_agent_whose_process_runs_is_not_ready_before_its_buffer_is_there(tmp_path: Path) -> None:
    config = tmp_path / "agent.toml"
    uplink = '[[uplinks]]\nregion = "eu"\nhost = "127.0.0.1"\n'
    config.write_text(f'[device]\nid = "bus-1"\n[buffer]\npath = "{tmp_path}/buffer"\n[status]\nport = 0\n{uplink}')
    assert not has_buffer(config)
    (tmp_path / "buffer").mkdir()
    (tmp_path / "buffer" / "buffer.db").touch()
    assert not has_buffer(config)
    (tmp_path / "buffer" / "buffer.db").unlink()
    agent = Agent(load(AgentSettings, config))
    assert has_buffer(config)
    agent.buffer.close()
    agent._lock_file.close()
