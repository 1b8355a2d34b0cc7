"""Devices that used something in the days of a closing, and that no closed payer has: nobody is asked for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cloud_jobs.billing.contracts.payer_contract import PayerContract
from cloud_jobs.billing.contracts.versions import micros, moment_of
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.schemas import QUANTITIES, QUARTERS
from cloud_jobs.lake.snapshot_reads import of_devices, usage_rows, used_devices
from cloud_jobs.lake.snapshots import LakeState
from cloud_jobs.lake.tables import Lake
from geo.spatial.ragged import Ints

MAX_NAMED: Final = 5
_DEVICES_AT_ONCE: Final = 250
_QUARTERS_US: Final = np.arange(QUARTERS) * (3_600_000_000 // QUARTERS)

_Times = list[tuple[int, int]]


def unbilled_devices(
    lake: Lake, snapshot: LakeState, start: datetime, end: datetime, contracts: Sequence[PayerContract]
) -> list[TenantDevice]:
    """The devices that used something between two moments, the second excluded, in time that no contract has them.

    Of a device that has a contract the time of that contract's period counts, in quarters of an hour. Raises LakeError.
    """
    billed = {device for one in contracts for device in one.devices}
    nobodys = {one for one in used_devices(lake, snapshot, start, end) if one not in billed}
    partly = sorted(_unassigned(contracts))
    for begin in range(0, len(partly), _DEVICES_AT_ONCE):
        nobodys.update(_using(lake, snapshot, dict(partly[begin : begin + _DEVICES_AT_ONCE])))
    return sorted(nobodys)


def _unassigned(contracts: Sequence[PayerContract]) -> Iterator[tuple[TenantDevice, _Times]]:
    """The devices that have a contract for a part of its period only, with the rest of that; most have none."""
    taken: dict[TenantDevice, _Times] = {}
    periods: dict[TenantDevice, _Times] = {}
    for contract in contracts:
        first, end = micros(contract.period.start), micros(contract.period.end)
        for one in contract.assigned:
            taken.setdefault(one.of_device, []).append((one.begin_us, one.end_us))
            if one.begin_us > first or one.end_us < end:
                periods.setdefault(one.of_device, []).append((first, end))
    for device, spans in periods.items():
        rest, at = [], min(spans)[0]
        for begin, until in sorted(taken[device]):
            rest += [(at, begin)] if at < begin else []
            at = max(at, until)
        last = max(until for _, until in spans)
        rest += [(at, last)] if at < last else []
        if rest:
            yield device, rest


def _using(lake: Lake, snapshot: LakeState, times: Mapping[TenantDevice, _Times]) -> Iterator[TenantDevice]:
    """The devices that used anything in some times of theirs (µs since 1970)."""
    first = moment_of(min(spans[0][0] for spans in times.values()))
    last = moment_of(max(spans[-1][1] for spans in times.values()) - 1)
    columns = ("tenant", "device", "hour", "zone", "commit_number", *QUANTITIES)
    rows = usage_rows(lake, snapshot, times.keys(), first, last, columns=columns)
    for device, spans in times.items():
        mine = of_devices(rows, [device])
        quarter: Ints = (mine["hour"].cast(pa.int64()).to_numpy()[:, None] + _QUARTERS_US).reshape(-1)
        within = np.any([(quarter >= begin) & (quarter < end) for begin, end in spans], axis=0)
        if any(pc.list_flatten(mine[name]).to_numpy()[within].any() for name in QUANTITIES):
            yield device


def unbilled_text(devices: Sequence[TenantDevice]) -> str:
    """What a clerk has to know of them, with the first names."""
    names = [f"{one.tenant}/{one.device}" for one in devices[:MAX_NAMED]]
    names += [f"and {len(devices) - MAX_NAMED:,} more"] if len(devices) > MAX_NAMED else []
    return (
        f"used in these days and billed to nobody, as no account that can be billed has it: {', '.join(names)};"
        " `waybill reconcile` says how much"
    )
