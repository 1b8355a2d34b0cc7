"""The table of decisions: rows are appended and numbered, never changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from itertools import count
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from cloud_jobs.billing.errors import BillingError
from cloud_jobs.lake.appending import Row, append_missing
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.schemas import DECISIONS
from cloud_jobs.lake.snapshot_reads import of_devices
from cloud_jobs.lake.snapshots import LakeState
from cloud_jobs.lake.tables import Condition, Lake, row_fault_as_error
from geo.reference.moments import stamp

# Checks of the author and the reason of a decision. Pure.

MAX_NAME: Final = 200
MAX_REASON: Final = 2000
LEAST_REASON: Final = 3


def attribution_faults(by: str, reason: str | None) -> Iterator[str]:
    """Faults of a name and a reason (None: not needed): each must be one line of text, and not empty."""
    if not 0 < len(by.strip()) <= MAX_NAME:
        yield f"it needs the name of who decides, at most {MAX_NAME} characters"
    if reason is not None and not LEAST_REASON <= len(reason.strip()) <= MAX_REASON:
        yield f"it needs a reason, {LEAST_REASON} to {MAX_REASON} characters"
    if any(not text.isprintable() for text in (by, reason or "")):
        yield "name and reason are one line of text each"


# Errors.


class BadDecision(BillingError):
    """An invalid decision; nothing is written."""

    def __init__(self, device: TenantDevice | None, faults: Sequence[str]) -> None:
        about = "" if device is None else f" about {device.tenant}/{device.device}"
        super().__init__(f"no decision recorded{about}: {'; '.join(faults)}")


# Decisions that close a period for a device. Pure.

_EARLIEST: Final = datetime(1970, 1, 1, tzinfo=UTC)


class ClosedState(StrEnum):
    """What a decision closes. `silent` does not cover a gap that is found later; `open` covers both; `doubts` is
    separate.
    """

    SILENT = "silent"
    OPEN = "open"
    DOUBTS = "doubts"

    def closes(self, state: str) -> bool:
        return state == self or (self is ClosedState.OPEN and state == ClosedState.SILENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Closes all periods of a device within [since, until). `number`: from 1 in the order of commits.

    `withdraws`: the decision that this one takes back; it then closes nothing itself. `accepts`: for doubts, the
    accepted amounts as canonical JSON; larger amounts are not covered.
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
        return TenantDevice(self.tenant, self.device)

    def covers(self, amounts: Mapping[str, int]) -> bool:
        """Whether no amount is larger than the accepted one."""
        accepted = json.loads(self.accepts or "{}")
        return all(amount <= accepted.get(name, 0) for name, amount in amounts.items())

    def document(self) -> dict[str, Any]:
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
    """Raises BadDecision with all faults. `now`: a decision cannot reach into the future."""
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
    """The latest decision that closes a state of a device for a whole period; None if there is none."""
    mine = standing(one for one in decisions if one.of_device == device)
    found = (one for one in mine if one.since <= start and end <= one.until and one.kind.closes(state))
    return max(found, key=lambda one: one.number, default=None)


def accepting(
    decisions: Iterable[Decision], device: TenantDevice, amounts: Mapping[str, int], start: datetime, end: datetime
) -> Decision | None:
    """The latest decision that accepts these amounts of doubts for a whole period; None if there is none."""
    found = (one for one in decisions if one.withdraws is not None or one.covers(amounts))
    return in_effect(found, device, ClosedState.DOUBTS, start, end)


def standing(decisions: Iterable[Decision]) -> list[Decision]:
    """The decisions that are in force: neither withdrawn nor withdrawals."""
    found = [*decisions]
    void = {one.withdraws for one in found} | {one.number for one in found if one.withdraws is not None}
    return [one for one in found if one.number not in void]


_TABLE: Final = "decisions"
_NEW: Final = 0
"""The number of a decision that is not stored yet."""


def decide(
    lake: Lake,
    device: TenantDevice,
    kind: ClosedState,
    span: tuple[datetime, datetime],
    *,
    decided_by: str,
    reason: str,
    now: datetime,
) -> Decision:
    """`decide_each` for one device."""
    return decide_each(lake, {device: kind}, span, decided_by=decided_by, reason=reason, now=now)[0]


def decide_each(
    lake: Lake,
    kinds: Mapping[TenantDevice, ClosedState],
    span: tuple[datetime, datetime],
    *,
    decided_by: str,
    reason: str,
    now: datetime,
    accepts: Mapping[TenantDevice, Mapping[str, int]] = MappingProxyType({}),
) -> list[Decision]:
    """Records a decision for each device, all or none, and returns them with their numbers.

    `span`: first moment and end (excluded); the periods within it are closed. `accepts`: for doubts, the amounts of
    each device. A decision that is in force is not recorded again, so a command may be repeated after a lost answer.
    Raises BadDecision, LakeError, CommitConflict.
    """
    for device in kinds:
        check_decision(device, span, decided_by, reason, now)
    since, until = (moment.astimezone(UTC) for moment in span)
    said: dict[str, Any] = {"decided_by": decided_by.strip(), "reason": reason.strip(), "decided_at": _utc(now)}
    asked = [
        Decision(
            number=_NEW, kind=kind, **device._asdict(), since=since, until=until, accepts=_text(accepts, device), **said
        )
        for device, kind in kinds.items()
    ]

    def wanted(rows: pa.Table) -> list[Decision]:
        # without the time: a command repeated after a lost answer is later
        stand = standing(_read(of_devices(rows, kinds)))
        same = {replace(one, number=_NEW, decided_at=_utc(now)): one for one in stand}
        return [same.get(one, one) for one in asked]

    return _appended(lake, wanted)


def _text(accepts: Mapping[TenantDevice, Mapping[str, int]], device: TenantDevice) -> str | None:
    found = accepts.get(device)
    return None if found is None else json.dumps(found, sort_keys=True, separators=(",", ":"))


def withdraw(lake: Lake, number: int, *, decided_by: str, reason: str, now: datetime) -> Decision:
    """Withdraws a decision for closings of later snapshots, and returns the withdrawal with its number.

    A repeated withdrawal is recorded once. Raises BadDecision for a number that is no decision in force; LakeError,
    CommitConflict.
    """
    answer: dict[str, Any] = {"decided_by": decided_by.strip(), "reason": reason.strip(), "decided_at": _utc(now)}

    def wanted(rows: pa.Table) -> list[Decision]:
        taken_back = next(iter(_read(rows.filter(pc.equal(rows["number"], number)))), None)
        faults = [*attribution_faults(decided_by, reason)]
        if taken_back is None or taken_back.withdraws is not None:
            raise BadDecision(
                None, [*faults, f"{number} is not the number of a decision; see `waybill decisions list`"]
            )
        before = next(iter(_read(rows.filter(pc.equal(rows["withdraws"], number)))), None)
        # repeated after a lost answer, it is the same withdrawal
        if before is not None and replace(before, **answer) != replace(before, decided_at=_utc(now)):
            faults.append(f"decision {number} was withdrawn by {before.decided_by} (number {before.number})")
        if faults:
            raise BadDecision(taken_back.of_device, faults)
        return [before or replace(taken_back, number=_NEW, withdraws=number, **answer)]

    return _appended(lake, wanted)[0]


def _appended(lake: Lake, wanted: Callable[[pa.Table], list[Decision]]) -> list[Decision]:
    """Appends in one commit those of the wanted decisions that have no number yet, and numbers them."""
    made: list[Decision] = []

    def missing(rows: pa.Table) -> list[Row]:
        asked = wanted(rows)
        numbers = count(1 + (pc.max(rows["number"]).as_py() or 0))
        made[:] = [replace(one, number=next(numbers)) if one.number == _NEW else one for one in asked]
        return [asdict(one) for one, before in zip(made, asked, strict=True) if before.number == _NEW]

    append_missing(lake, _TABLE, DECISIONS.names, missing)
    return made


def decisions(
    lake: Lake, snapshot: LakeState | None = None, devices: Collection[TenantDevice] | None = None
) -> list[Decision]:
    """All decisions in order, or those on some devices, as of now or of a snapshot. Raises LakeError."""
    where: list[Condition] = [] if snapshot is None else [("number", "<=", snapshot.decisions_number)]
    rows = lake.rows(_TABLE, where=where)
    # filtered in Arrow: Python costs a hundred times as much for each row
    return _read(rows if devices is None else of_devices(rows, devices))


def by_device(found: Iterable[Decision]) -> dict[TenantDevice, list[Decision]]:
    of: dict[TenantDevice, list[Decision]] = {}
    for one in found:
        of.setdefault(one.of_device, []).append(one)
    return of


def _read(rows: pa.Table) -> list[Decision]:
    found = []
    for row in rows.to_pylist():
        with row_fault_as_error(_TABLE, row):
            moments = {name: _utc(row[name]) for name in ("since", "until", "decided_at")}
            found.append(Decision(**row | moments | {"kind": ClosedState(row["kind"])}))
    return sorted(found, key=lambda one: one.number)


def _utc(moment: datetime) -> datetime:
    return moment.astimezone(UTC)
