"""What of a canary's settings cannot be used on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cloud_jobs.errors import LocationError
from cloud_jobs.lake.location import is_object_store
from deploy.canary.config import CanarySettings
from deploy.local.errors import ProgramMissing
from deploy.local.mosquitto import mosquitto_program
from edge_agent.checking import unusable_authorities
from runtime.broker_settings import unusable_files

__all__ = ["problems"]


def problems(settings: CanarySettings) -> list[str]:
    """One line for each file or place that is named and cannot be used."""
    found: list[str] = []
    for name, cluster in (("regional", settings.regional), ("centre", settings.centre)):
        if cluster is not None:
            found += [f"{name}.access.{field}: {fault}" for field, fault in cluster.access.file_faults()]
    for number, uplink in enumerate(settings.agent.uplinks):
        found += unusable_files(f"agent.uplinks.{number}", uplink)
    if settings.agent.enrolment is not None:
        found += unusable_authorities(settings.agent.enrolment, "agent.enrolment")
    if settings.broker.port is None:
        try:
            mosquitto_program()
        except ProgramMissing as error:
            found.append(f"broker.port: {error}")
    return [*found, *_lake_problems(settings)]


def _lake_problems(settings: CanarySettings) -> Iterator[str]:
    # where it is can be wrong though it can be read as a setting
    if settings.lake is None:
        return
    try:
        _ = settings.tables
    except LocationError as error:
        yield f"lake: {error}"
    if not is_object_store(settings.lake) and not Path(settings.lake).is_dir():
        yield f"lake: there is no folder {settings.lake}"
