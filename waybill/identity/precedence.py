"""Which of two publications of a device holds: the same one for every reader, in whichever order they arrive. Pure."""

from __future__ import annotations

from typing import NamedTuple

from waybill.identity.registry import DeviceEntry, DeviceState

__all__ = ["Precedence", "precedence"]

# Of two changes at once the one that lets in less holds: the other one can be asked for again.
_STRICTNESS = (
    DeviceState.EXPECTED,
    DeviceState.ACTIVE,
    DeviceState.SUSPENDED,
    DeviceState.REPLACED,
    DeviceState.MOVED,
    DeviceState.REVOKED,
)


class Precedence(NamedTuple):
    """Which of two publications of a device holds: the greater one, in whichever order they arrive."""

    is_ended: bool
    version: int
    strictness: int
    publication_id: str


def precedence(entry: DeviceEntry, publication_id: str) -> Precedence:
    """The rank of a publication among those of its device."""
    # The id of the publication comes last: it decides only where nothing else does, and so by the same rule everywhere.
    return Precedence(entry.is_ended, entry.version, _STRICTNESS.index(entry.state), publication_id)
