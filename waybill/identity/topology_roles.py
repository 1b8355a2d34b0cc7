"""Which roles a topology has, by their names alone: what they may do is the business of `waybill topology`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from waybill.identity.errors import IdentityError
from waybill.identity.nearest import did_you_mean
from waybill.settings import SettingsError, read_text
from waybill.settings.bounded_toml import parse_toml

__all__ = ["TopologyOption", "UnknownRole", "check_role", "topology_roles"]

_BROKERS = "brokers"
"""The role of all brokers where a topology has no `replication_role`."""

TopologyOption = Annotated[
    Path | None, typer.Option("--topology", help="The topology: its roles are those that there are.", dir_okay=False)
]


class UnknownRole(IdentityError):
    """A topology has no role of this name, or the file is no topology."""


def check_role(file: Path, role: str) -> None:
    """Raises UnknownRole for a role that a topology does not have, with the nearest one that it has."""
    if role not in (known := topology_roles(file)):
        raise UnknownRole(
            f"{file} has no role {role!r:.80}: {did_you_mean(role, known)}there are {', '.join(known):.500}"
        )


def topology_roles(file: Path) -> list[str]:
    """Every role, also those of regions and of each cluster's brokers. Raises UnknownRole."""
    try:
        tables = parse_toml(read_text(file))
    except SettingsError as error:
        raise UnknownRole("; ".join(error.lines)) from error
    except ValueError as error:
        raise UnknownRole(f"{file}: is not valid TOML: {error!s:.200}") from error
    if not isinstance(tables.get("roles"), dict):
        raise UnknownRole(f"{file}: is no topology with roles: it has no table [roles.NAME]")
    regions, clusters = _names(tables, "regions"), _names(tables, "clusters")
    brokers = str(tables.get("replication_role", _BROKERS))
    tenants = [name for name, one in tables.get("tenants", {}).items() if isinstance(one, dict) and one.get("operator")]
    found = {
        one.replace("{region}", region).replace("{tenant}", tenant)
        for one in _names(tables, "roles")
        for region in (regions if "{region}" in one else [""])
        for tenant in (tenants if "{tenant}" in one else [""])
    }
    return sorted(found | {brokers.replace("{cluster}", cluster) for cluster in clusters})


def _names(tables: Mapping[str, Any], table: str) -> list[str]:
    found = tables.get(table)
    return list(found) if isinstance(found, dict) else []
