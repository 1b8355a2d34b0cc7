"""The settings file of the canary's agent, made of the canary's own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from deploy.canary.config import CanarySettings
from edge_agent.config import AgentSettings, BufferSettings, DeviceSettings, DrainSettings, IntakeSettings
from edge_agent.config import StatusSettings as AgentStatusSettings

__all__ = ["agent_settings", "settings_toml"]

_HEARTBEAT_S: Final = 60.0
_PRUNE_DELAY_S: Final = 0.3
"""What is acknowledged goes from the buffer so soon: the canary looks there."""


def agent_settings(settings: CanarySettings, *, broker_port: int, status_port: int) -> AgentSettings:
    """The vehicle's agent: an ordinary one, with its buffer in the canary's folder."""
    return AgentSettings(
        device=DeviceSettings(id=settings.device, tenant=settings.tenant),
        insecure=settings.agent.insecure,
        intake=IntakeSettings(port=broker_port),
        buffer=BufferSettings(path=settings.folder.absolute() / "buffer", prune_delay_s=_PRUNE_DELAY_S),
        drain=DrainSettings(heartbeat_s=_HEARTBEAT_S),
        uplinks=settings.agent.uplinks,
        enrolment=settings.agent.enrolment,
        status=AgentStatusSettings(port=status_port),
    )


def settings_toml(settings: AgentSettings) -> str:
    """What was set, as TOML; paths are absolute, since the agent runs in a folder of its own."""
    return "\n".join(_lines(settings.model_dump(exclude_unset=True, exclude_none=True), ())) + "\n"


def _lines(table: Mapping[str, Any], name: tuple[str, ...]) -> Iterator[str]:
    # a table that follows would take the keys that come after it
    plain = {key: value for key, value in table.items() if not _is_table(value) and not _is_tables(value)}
    yield from (f"{key} = {_text(value)}" for key, value in plain.items())
    for key, value in table.items():
        below = (*name, key)
        if _is_table(value):
            yield from ["", f"[{'.'.join(below)}]", *_lines(value, below)]
        # an empty list of tables is none: TOML has no word for it
        elif _is_tables(value):
            for one in value:
                yield from ["", f"[[{'.'.join(below)}]]", *_lines(one, below)]


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_tables(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and bool(value) and all(map(_is_table, value))


def _text(value: Any) -> str:
    # the agent runs in a folder of its own
    if isinstance(value, Path):
        return json.dumps(str(value.absolute()))
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_text, value))}]"
    return json.dumps(value)
