"""The table of decisions: appended to, numbered, never changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from itertools import count
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from cloud_jobs.billing.attribution import attribution_faults
from cloud_jobs.billing.certificates.decision import ClosedState, Decision, check_decision, standing
from cloud_jobs.billing.certificates.errors import BadDecision
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.schemas import DECISIONS
from cloud_jobs.lake.shared_append import Row, append_missing
from cloud_jobs.lake.snapshot_reads import of_devices
from cloud_jobs.lake.snapshots import LakeState
from cloud_jobs.lake.tables import Condition, Lake, row_fault_as_error

_TABLE: Final = "decisions"
_NEW: Final = 0
"""The number of a decision that is not in the table yet."""


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
    """Closes what a device does not say of a time, and returns the decision with its number.

    As `decide_each` for one device.
    """
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
    """Closes what each of some devices does not say of a time, all or none, and returns the decisions with numbers.

    `span`: its first moment and the first one after it; the periods within it are closed. `accepts`: of devices whose
    doubts are closed, how much there is of each. A decision that stands is not
    made again, as after an answer that was lost; one that was withdrawn is. Raises BadDecision; LakeError,
    CommitConflict.
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
        # the time is left out: an answer that was lost comes again later
        stand = standing(_read(of_devices(rows, kinds)))
        same = {replace(one, number=_NEW, decided_at=_utc(now)): one for one in stand}
        return [same.get(one, one) for one in asked]

    return _appended(lake, wanted)


def _text(accepts: Mapping[TenantDevice, Mapping[str, int]], device: TenantDevice) -> str | None:
    found = accepts.get(device)
    return None if found is None else json.dumps(found, sort_keys=True, separators=(",", ":"))


def withdraw(lake: Lake, number: int, *, decided_by: str, reason: str, now: datetime) -> Decision:
    """Takes a decision back: closings of later snapshots do not rest on it. Returns the withdrawal with its number.

    The same twice is one. Raises BadDecision for a number that is no decision's, or was withdrawn; LakeError,
    CommitConflict.
    """
    answer: dict[str, Any] = {"decided_by": decided_by.strip(), "reason": reason.strip(), "decided_at": _utc(now)}

    def wanted(rows: pa.Table) -> list[Decision]:
        taken_back = next(iter(_read(rows.filter(pc.equal(rows["number"], number)))), None)
        faults = [*attribution_faults(decided_by, reason)]
        if taken_back is None or taken_back.withdraws is not None:
            raise BadDecision(None, [*faults, f"{number} is the number of none: `waybill decisions list` shows them"])
        before = next(iter(_read(rows.filter(pc.equal(rows["withdraws"], number)))), None)
        # sent again after an answer that was lost, it is the same one
        if before is not None and replace(before, **answer) != replace(before, decided_at=_utc(now)):
            faults.append(f"decision {number} was withdrawn by {before.decided_by} (number {before.number})")
        if faults:
            raise BadDecision(taken_back.of_device, faults)
        return [before or replace(taken_back, number=_NEW, withdraws=number, **answer)]

    return _appended(lake, wanted)[0]


def _appended(lake: Lake, wanted: Callable[[pa.Table], list[Decision]]) -> list[Decision]:
    """What is wanted of the table as it is, in one commit: what is there has a number, and the rest gets one."""
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
    """All decisions in their order or those on some devices, as they are or at a snapshot. Raises LakeError."""
    where: list[Condition] = [] if snapshot is None else [("number", "<=", snapshot.decisions_number)]
    rows = lake.rows(_TABLE, where=where)
    # in Arrow, among however many: a row that is looked at in Python costs a hundred times as much
    return _read(rows if devices is None else of_devices(rows, devices))


def by_device(found: Iterable[Decision]) -> dict[TenantDevice, list[Decision]]:
    """Decisions by whom they are about."""
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
