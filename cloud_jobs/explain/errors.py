"""Why a line cannot be explained.

ExplainError
├── NoSuchLine        the document has no such line, or not of that device
├── SeveralDevices    the line is of more than one device: say which
├── NotOfUsage        a cap or a minimum fee: nothing was used for it
├── TracksUnknown     the snapshot does not say with which track settings its usage was computed
└── NothingToDraw     there is no track of the line's hours
"""

from __future__ import annotations

from collections.abc import Sequence

from cloud_jobs.billing.errors import BillingError
from cloud_jobs.lake.coverage import TenantDevice

_MAX_NAMED = 10


class ExplainError(BillingError):
    """Base of what keeps a line from being explained."""


class NoSuchLine(ExplainError):
    """No line of that number, or none of that device."""

    def __init__(self, number: str, line: int, lines: int, device: TenantDevice | None) -> None:
        of = "" if device is None else f" of the device {device.tenant}/{device.device}"
        super().__init__(f"document {number} has no line {line}{of}; its lines are numbered 1 to {lines}")


class SeveralDevices(ExplainError):
    """The line adds up several devices, and each is explained by itself. `devices`: which."""

    def __init__(self, number: str, line: int, devices: Sequence[TenantDevice]) -> None:
        named = ", ".join(f"{one.tenant}/{one.device}" for one in devices[:_MAX_NAMED])
        more = f" and {len(devices) - _MAX_NAMED} more" if len(devices) > _MAX_NAMED else ""
        super().__init__(f"line {line} of {number} is of {len(devices)} devices: {named}{more}; say which by --device")
        self.devices = tuple(devices)


class NotOfUsage(ExplainError):
    """The charge follows from other charges of its account."""

    def __init__(self, number: str, line: int, kind: str) -> None:
        super().__init__(
            f"line {line} of {number} is a {kind}: it follows from the other lines of its account, not from records"
        )


class TracksUnknown(ExplainError):
    """Usage stated no track settings when the snapshot was taken."""

    def __init__(self, snapshot_id: str) -> None:
        super().__init__(
            f"snapshot {snapshot_id} does not say with which track settings its usage was computed: no run of"
            " `cloud-jobs usage` had stated them when it was taken. Run it, and close the period again"
        )


class NothingToDraw(ExplainError):
    """The line has no hour that could be computed again, or none with two fixes."""

    def __init__(self, number: str, line: int) -> None:
        super().__init__(f"line {line} of {number} has no track that could be drawn: its positions are erased, or none")
