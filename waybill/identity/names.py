"""Who somebody is, as the common name of a certificate says it: also the user name and the client id on the broker.

    acme/bus-17      a device: its tenant and its name
    gateway@eu-1     everybody else: a kind, and which one; no device can be called so

Nothing else of a certificate decides what somebody may do.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple

from waybill.identity.errors import NameRefused
from waybill.identity.nearest import nearest
from waybill.record.record import DEVICE_PATTERN

__all__ = [
    "MAX_NAME_CHARACTERS",
    "NAME_FORM",
    "DeviceName",
    "PrincipalKind",
    "PrincipalName",
    "device_name",
    "parse_name",
    "principal",
]

NAME_FORM = "up to 63 letters, digits, dots, dashes and underscores, of which the first is a letter or digit"
"""What a name of one part has."""
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
    if not tenant or not device:
        raise NameRefused(f"{tenant or device!r:.80} names no device: write TENANT/DEVICE, such as acme/bus-17")
    for what, name in (("tenant", tenant), ("device", device)):
        if not DEVICE_PATTERN.fullmatch(name):
            raise NameRefused(f"{name!r:.80} is no name of a {what}: {NAME_FORM}")
    return _bounded(f"{tenant}/{device}")


def principal(kind: PrincipalKind | str, name: str) -> str:
    """The name of somebody who is no device, such as `gateway@eu-1`. Raises NameRefused (a ValueError)."""
    if kind not in _KINDS:
        near = nearest(kind, _KINDS)
        meant = f"did you mean {near}@{name:.80}? There are" if near else "there are"
        known = ", ".join(f"{one}@NAME" for one in PrincipalKind)
        raise NameRefused(f"{kind!r:.80} is nobody's kind: {meant} {known}")
    if name.startswith(f"{kind}@"):
        raise NameRefused(f"{name!r:.80}: write the name alone, without {kind}@")
    text = f"{kind}@{name}"
    if _PRINCIPAL.fullmatch(text) is None:
        what = "serial" if kind == PrincipalKind.CLAIM else f"name of a {kind}"
        raise NameRefused(f"{name!r:.80} is no {what}: {NAME_FORM}")
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
