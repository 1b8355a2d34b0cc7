"""The table of decisions: appended to, numbered, never changed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import pyarrow.compute as pc

from cloud_jobs.billing.attribution import attribution_faults
from cloud_jobs.billing.certificates.decision import ClosedState, Decision, check_decision
from cloud_jobs.billing.certificates.errors import BadDecision
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.shared_append import append_missing
from cloud_jobs.lake.snapshots import LakeState
from cloud_jobs.lake.tables import Condition, Lake, row_fault_as_error

_TABLE = "decisions"


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

    `span`: its first moment and the first one after it; the periods within it are closed. The same decision twice is
    one, as after an answer that was lost. Raises BadDecision, also for a device that nothing ever came from and that is
    in no account; LakeError, CommitConflict.
    """
    check_decision(device, span, decided_by, reason, now)
    if not _is_known(lake, device):
        fault = "nothing was ever heard of it, and no account names it: look at tenant and device"
        raise BadDecision(device, [fault])
    since, until = (moment.astimezone(UTC) for moment in span)
    wanted = {"kind": kind.value, **device._asdict(), "since": since, "until": until, "withdraws": None}
    return _appended(lake, wanted | {"decided_by": decided_by.strip(), "reason": reason.strip()}, now)


def withdraw(lake: Lake, number: int, *, decided_by: str, reason: str, now: datetime) -> Decision:
    """Takes a decision back: closings of later snapshots do not rest on it. Returns the withdrawal with its number.

    The same twice is one. Raises BadDecision for a number that is no decision's, or was withdrawn; LakeError,
    CommitConflict.
    """
    found = {one.number: one for one in decisions(lake)}
    taken_back, faults = found.get(number), [*attribution_faults(decided_by, reason)]
    if taken_back is None or taken_back.withdraws is not None:
        raise BadDecision(None, [*faults, f"{number} is the number of none: `waybill decisions list` shows them"])
    # sent again after an answer that was lost, it is the same one
    answer = {"decided_by": decided_by.strip(), "reason": reason.strip()}
    before = next((one for one in found.values() if one.withdraws == number), None)
    if before is not None and (before.decided_by, before.reason) != tuple(answer.values()):
        faults.append(f"decision {number} was withdrawn by {before.decided_by} (number {before.number})")
    if faults:
        raise BadDecision(taken_back.of_device, faults)
    span = {"since": taken_back.since, "until": taken_back.until, "withdraws": number}
    return _appended(lake, {"kind": taken_back.kind.value, **taken_back.of_device._asdict()} | span | answer, now)


def _is_known(lake: Lake, device: TenantDevice) -> bool:
    """Whether anything came from a device, or an account names it: a slip would close another one, or none."""
    if lake.coverage_rows(lake.coverage_manifest(lake.ingest_commit()), [device]).num_rows:
        return True
    # parsed are those alone in whose text its name stands
    accounts = lake.rows("reference", ["body"], where=[("kind", "=", "account")])["body"]
    naming = accounts.filter(pc.match_substring(accounts, json.dumps(device.device)))
    return any(
        (one.get("tenant"), one.get("device")) == device
        for body in naming.to_pylist()
        for one in json.loads(body).get("devices", ())
    )


def _appended(lake: Lake, wanted: dict[str, Any], now: datetime) -> Decision:
    made: list[Decision] = []

    # the time is left out: an answer that was lost comes again later
    def missing(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        same = [row for row in rows if {name: row[name] for name in wanted} == wanted]
        number = 1 + max((row["number"] for row in rows), default=0)
        new = [] if same else [wanted | {"number": number, "decided_at": now.astimezone(UTC)}]
        made[:] = [_decision(row) for row in (*same, *new)]
        return new

    append_missing(lake, _TABLE, ["number", *wanted, "decided_at"], missing)
    return made[0]


def decisions(lake: Lake, snapshot: LakeState | None = None) -> list[Decision]:
    """All decisions in their order, as they are or at a snapshot. Raises LakeError."""
    where: list[Condition] = [] if snapshot is None else [("number", "<=", snapshot.decisions_number)]
    found = []
    for row in lake.rows(_TABLE, where=where).to_pylist():
        with row_fault_as_error(_TABLE, row):
            found.append(_decision(row))
    return sorted(found, key=lambda one: one.number)


def by_device(found: Iterable[Decision]) -> dict[TenantDevice, list[Decision]]:
    """Decisions by whom they are about."""
    of: dict[TenantDevice, list[Decision]] = {}
    for one in found:
        of.setdefault(one.of_device, []).append(one)
    return of


def _decision(row: dict[str, Any]) -> Decision:
    return Decision(
        number=row["number"],
        kind=ClosedState(row["kind"]),
        tenant=row["tenant"],
        device=row["device"],
        since=row["since"].astimezone(UTC),
        until=row["until"].astimezone(UTC),
        withdraws=row["withdraws"],
        decided_by=row["decided_by"],
        reason=row["reason"],
        decided_at=row["decided_at"].astimezone(UTC),
    )
