"""The table of decisions: appended to, numbered, never changed."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

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
    until: datetime,
    *,
    decided_by: str,
    reason: str,
    now: datetime,
) -> Decision:
    """Closes what a device does not say of the time up to a moment, and returns the decision with its number.

    The same decision twice is one, as after an answer that was lost. Raises BadDecision, also for a device that no
    record or statement ever came from; LakeError, CommitConflict.
    """
    check_decision(device, until, decided_by, reason, now)
    # a slip of the pen would close another device, or nothing at all
    if not lake.coverage_rows(lake.coverage_manifest(lake.ingest_commit()), [device]).num_rows:
        raise BadDecision(device, ["nothing was ever heard of it: look at tenant and device"])
    wanted = {
        "kind": kind.value,
        **device._asdict(),
        "until": until.astimezone(UTC),
        "decided_by": decided_by.strip(),
        "reason": reason.strip(),
    }
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
        until=row["until"].astimezone(UTC),
        decided_by=row["decided_by"],
        reason=row["reason"],
        decided_at=row["decided_at"].astimezone(UTC),
    )
