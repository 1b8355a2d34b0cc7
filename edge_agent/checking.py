"""What a settings file alone does not show: files that cannot be used, and what goes over the network in plain text.

The agent runs also with these problems: what cannot be delivered now is stored.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

from edge_agent.config import AgentSettings, EnrolmentSettings
from runtime.broker_settings import BrokerSettings, unusable_files

PULSAR_MISSING = 'kind "pulsar" needs the Pulsar client: install waybill[edge-pulsar]'


def problems(settings: AgentSettings) -> list[str]:
    """Files, folders and addresses that cannot be used or are missing, a line for each."""
    lines = [problem for table, broker in _brokers(settings) for problem in unusable_files(table, broker)]
    for number, uplink in enumerate(settings.uplinks):
        if uplink.kind == "pulsar" and importlib.util.find_spec("pulsar") is None:
            lines.append(f"uplinks.{number}.kind: {PULSAR_MISSING}")
    if settings.enrolment is not None:
        lines += unusable_authorities(settings.enrolment)
    return [*lines, *_unusable_folder(settings.buffer.path)]


def unusable_authorities(enrolment: EnrolmentSettings, table: str = "enrolment") -> list[str]:
    """The file of authorities, without which no certificate is asked for; `table` names the settings."""
    try:
        enrolment.ca.read_bytes()
    except OSError as error:
        return [f"{table}.ca: cannot be read: {error}"]
    return []


def warnings(settings: AgentSettings) -> list[str]:
    """What works, but is open to everybody on the way."""
    return list(settings.plain_text())


def _brokers(settings: AgentSettings) -> Iterator[tuple[str, BrokerSettings]]:
    yield "intake", settings.intake
    for number, uplink in enumerate(settings.uplinks):
        yield f"uplinks.{number}", uplink


def _unusable_folder(folder: Path) -> Iterator[str]:
    for path in (folder, *folder.parents):
        try:
            if path.exists():
                if not path.is_dir():
                    yield f"buffer.path: {path} is not a folder"
                return
        except OSError as error:
            yield f"buffer.path: {error}"
            return
