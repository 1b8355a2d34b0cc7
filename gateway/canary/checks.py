"""The settings of the canary's agent, and what of a canary's settings cannot be used on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from cloud_jobs.errors import LocationError
from cloud_jobs.lake.location import is_object_store
from deploy.local.errors import ProgramMissing
from deploy.local.mosquitto import mosquitto_program
from edge_agent.checking import unusable_enrolment
from edge_agent.config import AgentSettings, BufferSettings, DeviceSettings, DrainSettings, IntakeSettings
from edge_agent.config import StatusSettings as AgentStatusSettings
from gateway.canary.config import CanarySettings
from waybill.mqtt.broker_settings import is_this_machine, unusable_files
from waybill.pulsar.pulsar_client import token_faults, tokens_ending

# The settings file of the canary's agent.

_HEARTBEAT_S: Final = 60.0
_PRUNE_DELAY_S: Final = 0.3
"""Acknowledged records are deleted from the buffer after so long."""


def agent_settings(settings: CanarySettings, *, broker_port: int, status_port: int) -> AgentSettings:
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
    """The set values as TOML, with absolute paths, as the agent runs in a folder of its own."""
    values = settings.model_dump(exclude_unset=True, exclude_none=True)
    return "".join(f"{name} = {_inline(value)}\n" for name, value in values.items())


def _inline(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} = {_inline(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_inline, value))}]"
    return json.dumps(str(value.absolute()) if isinstance(value, Path) else value)


_ANY_PORT: Final = 1


def problems(settings: CanarySettings) -> list[str]:
    """One line for each file or place that cannot be used."""
    found: list[str] = []
    for name, cluster in (("regional", settings.regional), ("centre", settings.centre)):
        if cluster is not None:
            found += [f"{name}.access.{field}: {fault}" for field, fault in cluster.access.file_faults()]
    for number, uplink in enumerate(settings.agent.uplinks):
        found += unusable_files(f"agent.uplinks.{number}", uplink)
    found += _agent_problems(settings)
    try:
        mosquitto_program()
    except ProgramMissing as error:
        found.append(str(error))
    return [*found, *_lake_problems(settings)]


def warnings(settings: CanarySettings, now_s: float) -> list[str]:
    """Settings that work and are probably not meant: a token that has ended or ends soon, and a status that others can
    read.
    """
    clusters = (("regional", settings.regional), ("centre", settings.centre))
    accesses = {f"{name}.access": one.access for name, one in clusters if one is not None}
    host = settings.status.host
    served = [] if is_this_machine(host) else [f"status.host: everybody who reaches {host} reads the status"]
    return [*token_faults(accesses, now_s), *tokens_ending(accesses, now_s), *served]


def _agent_problems(settings: CanarySettings) -> list[str]:
    # the agent's own message about plain text refers to another file
    allowed = settings.agent.model_copy(update={"insecure": True})
    try:
        # its ports do not matter here
        agent = agent_settings(
            settings.model_copy(update={"agent": allowed}),
            broker_port=_ANY_PORT,
            status_port=_ANY_PORT,
        )
    # the agent would end at each start
    except ValidationError as error:
        return [f"agent: {one['msg'].removeprefix('Value error, ')}" for one in error.errors()]
    plain = () if settings.agent.insecure else agent.plain_text()
    return [
        *(f"agent.{one}, or say insecure = true in [agent]" for one in plain),
        *unusable_enrolment(agent, "agent.enrolment"),
    ]


def _lake_problems(settings: CanarySettings) -> Iterator[str]:
    # the setting may be well-formed and wrong
    if settings.lake is None:
        return
    try:
        _ = settings.tables
    except LocationError as error:
        yield f"lake: {error}"
    if not is_object_store(settings.lake) and not Path(settings.lake).is_dir():
        yield f"lake: there is no folder {settings.lake}"
