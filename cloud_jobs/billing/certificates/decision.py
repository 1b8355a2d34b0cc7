"""What a person decides where a device does not say it: that a period is closed all the same. Pure.

A decision is named on the certificate and on every bill that rests on it. What comes later is an adjustment.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from cloud_jobs.billing.attribution import attribution_faults
from cloud_jobs.billing.certificates.errors import BadDecision
from cloud_jobs.billing.period import stamp
from cloud_jobs.lake.coverage import TenantDevice


class ClosedState(StrEnum):
    """What a decision closes: `silent` no gap that is found later, `open` both."""

    SILENT = "silent"
    OPEN = "open"

    def closes(self, state: str) -> bool:
        """Whether a device in a state is closed by it."""
        return state == self or (self is ClosedState.OPEN and state == ClosedState.SILENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """`number`: counted from 1 in the order of commits. It closes all periods that end at `until` or before."""

    number: int
    kind: ClosedState
    tenant: str
    device: str
    until: datetime
    decided_by: str
    reason: str
    decided_at: datetime

    @property
    def of_device(self) -> TenantDevice:
        """Whose silence or gap it closes."""
        return TenantDevice(self.tenant, self.device)

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "number": self.number,
            "kind": self.kind.value,
            "until": stamp(self.until),
            "decided_by": self.decided_by,
            "reason": self.reason,
            "decided_at": stamp(self.decided_at),
        }


def check_decision(device: TenantDevice, until: datetime, decided_by: str, reason: str, now: datetime) -> None:
    """Raises BadDecision with everything that is wrong. `now`: nobody decides on what is still to come."""
    faults = []
    if not device.tenant.strip() or not device.device.strip():
        faults.append("it names no tenant or no device")
    faults += attribution_faults(decided_by, reason)
    if until.utcoffset() is None:
        faults.append(f"{until.isoformat()} has no offset from UTC")
    elif until.astimezone(UTC) > now:
        faults.append(f"{stamp(until)} has not come yet")
    elif until.astimezone(UTC) < datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=1):
        faults.append(f"{stamp(until)} is before anything was recorded")
    if faults:
        raise BadDecision(device, faults)


def in_effect(decisions: Iterable[Decision], device: TenantDevice, state: str, end: datetime) -> Decision | None:
    """The latest decision that closes a device in a state up to the end of a period; None: none does."""
    found = [one for one in decisions if one.of_device == device and one.until >= end and one.kind.closes(state)]
    return max(found, key=lambda one: one.number, default=None)
