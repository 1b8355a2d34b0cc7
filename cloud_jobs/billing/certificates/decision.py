"""What a person decides where a device does not say it: that a period is closed all the same. Pure.

A decision is named on the certificate and on every bill that rests on it. What comes later is an adjustment.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from cloud_jobs.billing.attribution import attribution_faults
from cloud_jobs.billing.certificates.errors import BadDecision
from cloud_jobs.lake.coverage import TenantDevice
from geo.reference.moments import stamp

_EARLIEST: Final = datetime(1970, 1, 1, tzinfo=UTC)


class ClosedState(StrEnum):
    """What a decision closes: `silent` no gap that is found later, `open` both; `doubts` what could not be read."""

    SILENT = "silent"
    OPEN = "open"
    DOUBTS = "doubts"

    def closes(self, state: str) -> bool:
        """Whether a device in a state is closed by it."""
        return state == self or (self is ClosedState.OPEN and state == ClosedState.SILENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """It closes all periods of a device within [since, until). `number`: counted from 1 in the order of commits.

    `withdraws`: the number of the decision that this one takes back; it closes nothing itself then. `accepts`: of
    doubts, how much of each there was: canonical JSON; what is more than that it does not close.
    """

    number: int
    kind: ClosedState
    tenant: str
    device: str
    since: datetime
    until: datetime
    decided_by: str
    reason: str
    decided_at: datetime
    withdraws: int | None = None
    accepts: str | None = None

    @property
    def of_device(self) -> TenantDevice:
        """Whose silence or gap it closes."""
        return TenantDevice(self.tenant, self.device)

    def covers(self, amounts: Mapping[str, int]) -> bool:
        """Whether there is no more of anything than it accepts."""
        accepted = json.loads(self.accepts or "{}")
        return all(amount <= accepted.get(name, 0) for name, amount in amounts.items())

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "number": self.number,
            "kind": self.kind.value,
            "since": stamp(self.since),
            "until": stamp(self.until),
            "decided_by": self.decided_by,
            "reason": self.reason,
            "decided_at": stamp(self.decided_at),
            "withdraws": self.withdraws,
            "accepts": None if self.accepts is None else json.loads(self.accepts),
        }


def check_decision(
    device: TenantDevice, span: tuple[datetime, datetime], decided_by: str, reason: str, now: datetime
) -> None:
    """Raises BadDecision with everything that is wrong. `now`: nobody decides on what is still to come."""
    faults, (since, until) = list[str](), span
    if not device.tenant.strip() or not device.device.strip():
        faults.append("it names no tenant or no device")
    faults += attribution_faults(decided_by, reason)
    if since.utcoffset() is None or until.utcoffset() is None:
        faults.append(f"{since.isoformat()} or {until.isoformat()} has no offset from UTC")
    elif until.astimezone(UTC) > now:
        faults.append(f"{stamp(until)} has not come yet")
    elif not _EARLIEST <= since.astimezone(UTC) < until.astimezone(UTC):
        faults.append(f"from {stamp(since)} to {stamp(until)} nothing was recorded")
    if faults:
        raise BadDecision(device, faults)


def in_effect(
    decisions: Iterable[Decision], device: TenantDevice, state: str, start: datetime, end: datetime
) -> Decision | None:
    """The latest decision that closes a device in a state for the whole of a period; None: none does."""
    mine = standing(one for one in decisions if one.of_device == device)
    found = (one for one in mine if one.since <= start and end <= one.until and one.kind.closes(state))
    return max(found, key=lambda one: one.number, default=None)


def accepting(
    decisions: Iterable[Decision], device: TenantDevice, amounts: Mapping[str, int], start: datetime, end: datetime
) -> Decision | None:
    """The latest decision that closes so many doubts on a device for the whole of a period; None: none does."""
    found = (one for one in decisions if one.withdraws is not None or one.covers(amounts))
    return in_effect(found, device, ClosedState.DOUBTS, start, end)


def standing(decisions: Iterable[Decision]) -> list[Decision]:
    """Of all decisions on some devices those that hold: neither what was taken back nor what takes it back does."""
    found = [*decisions]
    void = {one.withdraws for one in found} | {one.number for one in found if one.withdraws is not None}
    return [one for one in found if one.number not in void]
