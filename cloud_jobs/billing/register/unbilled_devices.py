"""Devices that used something in the days of a closing, and that no closed payer has: nobody is asked for it."""

from __future__ import annotations

from collections.abc import Sequence, Set
from datetime import datetime
from typing import Final

from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.snapshot_reads import used_devices
from cloud_jobs.lake.snapshots import LakeState
from cloud_jobs.lake.tables import Lake

MAX_NAMED: Final = 5


def unbilled_devices(
    lake: Lake, snapshot: LakeState, start: datetime, end: datetime, billed: Set[TenantDevice]
) -> list[TenantDevice]:
    """The devices that have usage between two moments, the second excluded, and are not among those that are billed.

    Who is billed for a part of the time is billed; what it used besides `waybill reconcile` counts. Raises LakeError.
    """
    return sorted({one for one in used_devices(lake, snapshot, start, end) if one not in billed})


def unbilled_text(devices: Sequence[TenantDevice]) -> str:
    """What a clerk has to know of them, with the first names."""
    names = [f"{one.tenant}/{one.device}" for one in devices[:MAX_NAMED]]
    names += [f"and {len(devices) - MAX_NAMED:,} more"] if len(devices) > MAX_NAMED else []
    return (
        f"used in these days and billed to nobody, as no account that can be billed has it: {', '.join(names)};"
        " `waybill reconcile` says how much"
    )
