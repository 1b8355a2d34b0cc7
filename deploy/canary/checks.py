"""What of a canary's settings cannot be used on this machine."""

from __future__ import annotations

from cloud_jobs.errors import LocationError
from deploy.canary.config import CanarySettings
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
    # where it is can be wrong though it can be read as a setting
    if settings.lake is not None:
        try:
            _ = settings.tables
        except LocationError as error:
            found.append(f"lake: {error}")
    return found
