"""Roles and what they may do: who a token names, and the least that one needs. Pure."""

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Literal

from pydantic import Field, model_validator

from waybill.settings import Settings

__all__ = ["REGION", "TENANT", "Action", "Grants", "Role", "expanded_roles", "namespace_of", "role_name"]

Action = Literal["produce", "consume"]
Grants = Mapping[str, frozenset[str]]
"""Actions by role."""
TENANT, REGION, CLUSTER = "{tenant}", "{region}", "{cluster}"


class Role(Settings):
    """What the bearer of a token may do. `{region}` and `{tenant}` in its name make one for each of them."""

    superuser: bool = Field(
        False, description="may do everything; the brokers' own configuration names it, and plan compares"
    )
    on: Literal["everywhere", "region", "centre"] = Field(
        "everywhere",
        description="where its grants hold: on each cluster of the namespace, on the cluster of the role's region, or "
        "on the centre and its standby",
    )
    grants: Mapping[str, tuple[Action, ...]] = Field(
        {},
        description="actions by topic (tenant/namespace/topic), or by namespace for each topic that the topology names "
        "there; {tenant} is the role's operator, or each one, {region} the role's region, or each one",
    )

    @model_validator(mode="after")
    def _means_something(self) -> "Role":
        if self.superuser and self.grants:
            raise ValueError("superuser: may do everything already; say either this or grants")
        if empty := sorted(name for name, actions in self.grants.items() if not actions):
            raise ValueError(f"grants.{empty[0]}: names no action; leave it out, and nothing is allowed")
        return self


def expanded_roles(
    roles: Mapping[str, Role], tenants: Iterable[str], regions: Iterable[str]
) -> dict[str, tuple[Role, str | None]]:
    """Every role by its own name, with its region; grants are of names without `{tenant}` and `{region}`.

    Raises ValueError where two entries make one role, or two grants of a role are of one resource: one would be lost.
    """
    found: dict[str, tuple[Role, str | None]] = {}
    operators, known = list(tenants), list(regions)
    for pattern, role in roles.items():
        for own, region in product(operators if TENANT in pattern else [""], known if REGION in pattern else [None]):
            name = pattern.replace(REGION, region or "").replace(TENANT, own)
            if name in found:
                raise ValueError(f"roles: {name} is made by more than one entry")
            filled = [
                (resource.replace(TENANT, tenant).replace(REGION, one), actions)
                for resource, actions in role.grants.items()
                for tenant in ([own] if own else operators if TENANT in resource else [""])
                for one in ([region] if region else known if REGION in resource else [""])
            ]
            names = [resource for resource, _ in filled]
            if twice := sorted({resource for resource in names if names.count(resource) > 1}):
                raise ValueError(f"roles.{name}.grants: {', '.join(twice)} is named by more than one entry")
            found[name] = role.model_copy(update={"grants": dict(filled)}), region
    return found


def role_name(pattern: str, cluster: str) -> str:
    """The role of one cluster's brokers."""
    return pattern.replace(CLUSTER, cluster)


def namespace_of(resource: str) -> str:
    """The namespace of what a grant names: itself, or that of a topic."""
    return "/".join(resource.split("/")[:2])
