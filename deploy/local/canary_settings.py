"""The settings of a canary on a local stack, as `waybill canary` reads them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from deploy.local.stack import LocalStack

__all__ = ["CANARY_TENANT", "StackCanary", "canary_device", "canary_place", "canary_settings"]

CANARY_TENANT: Final = "canary"
"""The tenant that is reserved for canaries, as the stack's topology names it."""
_NOWHERE: Final = (54.6, 4.2)
"""In the North Sea: nobody drives there."""
_APART_DEG: Final = 0.1
"""From the place of one region to that of the next, 6 km: whoever drives through another's fence is metered in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackCanary:
    """What differs from one canary to the next. Paths are absolute.

    `folder`: of its vehicle. `watched`: names of hops; none: all. `lake`: None: it looks at no table. `object_store`:
    the table of that name, as TOML. `script`, `limits`: what is not as it is by default.
    """

    region: str
    folder: Path
    token_file: Path
    status_port: int
    watched: Collection[str] = ()
    lake: str | None = None
    object_store: str = ""
    lost_after_s: float = 300
    script: Mapping[str, float] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)


def canary_device(region: str) -> str:
    """The name of a region's canary; its account, its fence and its role are named so, too."""
    return f"{CANARY_TENANT}-{region}"


def canary_place(region: str, regions: Iterable[str]) -> tuple[float, float]:
    """Where the canary of a region drives (latitude, longitude): nobody else does, nor that of another region."""
    latitude, longitude = _NOWHERE
    return latitude, round(longitude + _APART_DEG * sorted(regions).index(region), 6)


def canary_settings(stack: LocalStack, canary: StackCanary) -> str:
    """Of a canary whose uplink goes through the link of its region, with or without TLS as the stack has it."""
    region, device = canary.region, canary_device(canary.region)
    (latitude, longitude), centre = canary_place(region, stack.topology.regions), stack.topology.centre
    access = stack.access(device).as_toml()
    head: dict[str, object] = {"region": region, "device": device, "folder": str(canary.folder)}
    head |= {"watched": [*canary.watched]} if canary.watched else {}
    head |= {"lake": canary.lake} if canary.lake else {}
    head["lost_after_s"] = canary.lost_after_s
    return f"""{_lines(head)}
[script]
{_lines({"latitude": latitude, "longitude": longitude, **canary.script})}
[limits]
{_lines(canary.limits)}
[[agent.uplinks]]
region = "{region}"
host = "127.0.0.1"
port = {stack.links[region].port}
backoff_max_s = 2
{_trust(stack, canary)}
[regional]
service_url = "{stack.pulsar[stack.topology.regions[region].cluster].service_url}"
[regional.access]
{access}
[centre]
service_url = "{stack.pulsar[centre].service_url}"
[centre.access]
{access}
{canary.object_store}
[status]
port = {canary.status_port}
"""


def _trust(stack: LocalStack, canary: StackCanary) -> str:
    """Whom its agent trusts, and how it gets its certificate; nothing where nobody is asked."""
    if stack.authority is None:
        return ""
    return f"""[agent.uplinks.tls]
ca = "{stack.authority.file}"

[agent.enrolment]
port = {stack.enrolment[canary.region].port}
host = "127.0.0.1"
ca = "{stack.authority.file}"
token_file = "{canary.token_file}"
backoff_first_s = 1
backoff_max_s = 5
"""


def _lines(values: Mapping[str, object]) -> str:
    # numbers, texts and lists of texts: TOML writes them as JSON does
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items())
