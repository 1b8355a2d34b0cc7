"""The daemon on the vehicle: durable buffer, drain, uplinks. Light: no numpy, no pyarrow."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edge_agent.agent import Agent
    from edge_agent.config import AgentSettings
    from edge_agent.errors import AgentError

__all__ = ["Agent", "AgentError", "AgentSettings"]
_HOMES = {"Agent": "edge_agent.agent", "AgentError": "edge_agent.errors", "AgentSettings": "edge_agent.config"}


def __getattr__(name: str) -> Any:
    """The public names, imported on first use: the command line must start before them."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
