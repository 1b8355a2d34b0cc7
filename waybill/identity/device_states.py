"""The states of a device in the registry."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["ENDED", "DeviceState"]


class DeviceState(StrEnum):
    """What a device may do now."""

    EXPECTED = "expected"
    """It may enrol with its claim."""
    ACTIVE = "active"
    """It has a certificate, and may send."""
    SUSPENDED = "suspended"
    """It may not connect until it is resumed."""
    REVOKED = "revoked"
    """It may never connect again."""
    MOVED = "moved"
    """It belongs to another tenant now, under the name of its successor."""
    REPLACED = "replaced"
    """Its successor is in its vehicle now."""


# A name is used once: what ended under it is in records and bills, and must not mean another device.
ENDED = frozenset({DeviceState.REVOKED, DeviceState.MOVED, DeviceState.REPLACED})
