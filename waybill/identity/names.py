"""Names of devices and clients: a certificate's common name, and the user name and client id on the broker.

    acme/bus-17      a device: its tenant and its name
    gateway@eu-1     any other client or server: its kind and its name

Only the common name of a certificate decides about rights.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Final, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints

from waybill.identity.errors import NameRefused
from waybill.record.record import DEVICE_PATTERN
from waybill.settings.text import nearest

# Bounds of signed values, checked where they are read.

FIRST_MOMENT: Final = datetime(2020, 1, 1, tzinfo=UTC)
LAST_MOMENT: Final = datetime(2200, 1, 1, tzinfo=UTC)
MAX_VERSION: Final = 1 << 40
"""More than a change each millisecond for 30 years; sums of versions are exact in JSON."""
MAX_LINE_CHARACTERS: Final = 500


def _in_utc(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError("a moment needs its offset, for instance 2027-01-01T00:00:00Z")
    # Compared first: the first and last days of the calendar cannot be converted.
    if not FIRST_MOMENT <= moment < LAST_MOMENT:
        raise ValueError(f"a moment is of the years {FIRST_MOMENT.year} to {LAST_MOMENT.year - 1}, in UTC")
    return moment.astimezone(UTC)


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("it is one line of characters that can be printed")
    return text


def _no_flag(number: object) -> object:
    if isinstance(number, bool):
        raise ValueError("it is a whole number")
    return number


Moment = Annotated[datetime, AfterValidator(_in_utc)]
"""In UTC; one without an offset is refused."""
Line = Annotated[str, StringConstraints(max_length=MAX_LINE_CHARACTERS), AfterValidator(_printable)]
"""Printable characters, or empty."""
Version = Annotated[int, BeforeValidator(_no_flag), Field(ge=1, le=MAX_VERSION)]
Serial = Annotated[str, StringConstraints(pattern=r"^(?:[1-9a-f][0-9a-f]{0,38}|[1-7][0-9a-f]{39})$")]
"""Of a certificate, in hexadecimal digits: positive and below 2**159, as in revocation lists."""


NAME_FORM = "up to 63 letters, digits, dots, dashes and underscores, of which the first is a letter or digit"
MAX_NAME_CHARACTERS = 64
"""Of a certificate's common name (`ub-common-name` of RFC 5280)."""
# No device's name has an @, and user names of Mosquitto's password file may have all of these characters.
_PRINCIPAL = re.compile(r"([a-z]+)@([A-Za-z0-9][A-Za-z0-9._-]{0,62})")


class PrincipalKind(StrEnum):
    GATEWAY = "gateway"
    """Forwards batches from the broker to Pulsar."""
    ACCESS = "access"
    """The access daemon of a region."""
    CLAIM = "claim"
    """A device that is not enrolled yet: named by its factory serial or its token."""
    BROKER = "broker"
    """A region's MQTT broker."""
    PULSAR = "pulsar"
    """The brokers of a Pulsar cluster."""
    PROBE = "probe"
    """Checks whether a broker answers, and has no rights there."""


_KINDS = {kind.value: kind for kind in PrincipalKind}


class DeviceName(NamedTuple):
    tenant: str
    device: str

    def __str__(self) -> str:
        return f"{self.tenant}/{self.device}"


class PrincipalName(NamedTuple):
    kind: PrincipalKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind}@{self.name}"


def device_name(tenant: str, device: str) -> str:
    """The name `tenant/device`. Raises NameRefused (a ValueError)."""
    if not tenant or not device:
        raise NameRefused(f"{tenant or device!r:.80} names no device: write TENANT/DEVICE, such as acme/bus-17")
    for what, name in (("tenant", tenant), ("device", device)):
        if not DEVICE_PATTERN.fullmatch(name):
            raise NameRefused(f"{name!r:.80} is not a name for a {what}: {NAME_FORM}")
    return _bounded(f"{tenant}/{device}")


def principal(kind: PrincipalKind | str, name: str) -> str:
    """The name of a client or server, such as `gateway@eu-1`. Raises NameRefused (a ValueError)."""
    if kind not in _KINDS:
        near = nearest(kind, _KINDS)
        meant = f"did you mean {near}@{name:.80}? There are" if near else "there are"
        known = ", ".join(f"{one}@NAME" for one in PrincipalKind)
        raise NameRefused(f"{kind!r:.80} is not a kind: {meant} {known}")
    if name.startswith(f"{kind}@"):
        raise NameRefused(f"{name!r:.80}: write the name alone, without {kind}@")
    text = f"{kind}@{name}"
    if _PRINCIPAL.fullmatch(text) is None:
        what = "serial" if kind == PrincipalKind.CLAIM else f"name of a {kind}"
        raise NameRefused(f"{name!r:.80} is no {what}: {NAME_FORM}")
    return _bounded(text)


def parse_name(cn: str) -> DeviceName | PrincipalName | None:
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
