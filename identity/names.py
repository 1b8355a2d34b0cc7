"""Who somebody is, as the common name of a certificate says it: also the user name and the client id on the broker.

    acme/bus-17      a device: its tenant and its name
    gateway@eu-1     everybody else: a kind, and which one; no device can be called so

Nothing else of a certificate decides what somebody may do.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple

from identity.errors import NameRefused
from telemetry.record import DEVICE_PATTERN

__all__ = [
    "MAX_NAME_CHARACTERS",
    "DeviceName",
    "PrincipalKind",
    "PrincipalName",
    "device_name",
    "parse_name",
    "principal",
]

MAX_NAME_CHARACTERS = 64
"""Of a certificate's common name (`ub-common-name` of RFC 5280)."""
# One character of these stands in no device's name, and all of them in a user name of Mosquitto's password file.
_PRINCIPAL = re.compile(r"([a-z]+)@([A-Za-z0-9][A-Za-z0-9._-]{0,62})")


class PrincipalKind(StrEnum):
    """What a client or server that is no device does."""

    GATEWAY = "gateway"
    """Takes batches from the broker to Pulsar."""
    ACCESS = "access"
    """The access daemon of a region."""
    CLAIM = "claim"
    """A device that is not enrolled yet: named by its factory serial or its token."""
    BROKER = "broker"
    """A region's MQTT broker."""
    PULSAR = "pulsar"
    """The brokers of a Pulsar cluster."""
    PROBE = "probe"
    """Asks a broker whether it answers, and may do nothing there."""


_KINDS = {kind.value: kind for kind in PrincipalKind}


class DeviceName(NamedTuple):
    """A device and its tenant."""

    tenant: str
    device: str

    def __str__(self) -> str:
        return f"{self.tenant}/{self.device}"


class PrincipalName(NamedTuple):
    """Somebody who is no device."""

    kind: PrincipalKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind}@{self.name}"


def device_name(tenant: str, device: str) -> str:
    """The name of a device, `tenant/device`. Raises NameRefused (a ValueError) for what no device can be called."""
    if not (DEVICE_PATTERN.fullmatch(tenant) and DEVICE_PATTERN.fullmatch(device)):
        raise NameRefused(f"{tenant!r} and {device!r} are not the names of a tenant and a device")
    return _bounded(f"{tenant}/{device}")


def principal(kind: PrincipalKind | str, name: str) -> str:
    """The name of somebody who is no device, such as `gateway@eu-1`. Raises NameRefused (a ValueError)."""
    text = f"{kind}@{name}"
    matched = _PRINCIPAL.fullmatch(text)
    if matched is None or matched[1] not in _KINDS:
        raise NameRefused(f"{text!r} is not one of {', '.join(f'{kind}@NAME' for kind in PrincipalKind)}")
    return _bounded(text)


def parse_name(cn: str) -> DeviceName | PrincipalName | None:
    """Who a common name says it is; None for a name that nobody can have."""
    # A certificate of another maker may have any name.
    if len(cn) > MAX_NAME_CHARACTERS:
        return None
    if matched := _PRINCIPAL.fullmatch(cn):
        kind = _KINDS.get(matched[1])
        return None if kind is None else PrincipalName(kind, matched[2])
    tenant, slash, device = cn.partition("/")
    if slash and DEVICE_PATTERN.fullmatch(tenant) and DEVICE_PATTERN.fullmatch(device):
        return DeviceName(tenant, device)
    return None


def _bounded(name: str) -> str:
    if len(name) > MAX_NAME_CHARACTERS:
        raise NameRefused(
            f"{name!r} has {len(name)} characters; a certificate's name has at most {MAX_NAME_CHARACTERS}"
        )
    return name
