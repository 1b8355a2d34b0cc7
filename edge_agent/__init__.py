"""The daemon on the vehicle: durable buffer, drain, uplinks. Light: no numpy, no pyarrow."""

from edge_agent.agent import Agent
from edge_agent.config import AgentSettings
from edge_agent.errors import AgentError

__all__ = ["Agent", "AgentError", "AgentSettings"]
