"""What the devices of accounts used in a period, summed straight from the rows of usage: a control beside rating."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cloud_jobs.billing.meters import Meter
from cloud_jobs.billing.rating import RatingContract
from cloud_jobs.billing.rating.cells import WITHOUT_ZONE
from cloud_jobs.billing.rating.cells_of_usage import METER_OF
from cloud_jobs.billing.rating.usage_columns import known_quarters
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.schemas import WHOLE_DEVICE

_QUARTER_US: Final = 900_000_000
_QUARTERS: Final = 4
_INFERRED: Final = "inferred_entries"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Held(NamedTuple):
    """From which quarter of an hour (since 1970) until which one (excluded) whose device it is."""

    begin: int
    end: int
    payer: str
    account: str

    @classmethod
    def of(cls, begin: datetime, end: datetime, payer: str, account: str) -> Held:
        """Between two moments, which are on quarters."""
        return cls(_quarter(begin), _quarter(end), payer, account)


def assigned_usage(contracts: Sequence[RatingContract], usage: pa.Table) -> dict[str, Counter[tuple[str, Meter]]]:
    """For each payer the quantities of its accounts, by account and meter; active days are left out, and inferred
    entries of accounts that have no price for them.

    `usage`: rows in force, in the order of tenant and device. Rows of other devices are passed over.
    """
    sums: dict[str, Counter[tuple[str, Meter]]] = {contract.payer: Counter() for contract in contracts}
    sums |= held_usage(held_by(contracts), usage)
    if _INFERRED in usage.column_names:
        for contract in contracts:
            for terms in contract.accounts:
                if not terms.sells_inferred_entries:
                    del sums[contract.payer][terms.account, METER_OF[_INFERRED]]
    return sums


def held_usage(
    held: Mapping[TenantDevice, Sequence[Held]], usage: pa.Table
) -> defaultdict[str, Counter[tuple[str, Meter]]]:
    """`assigned_usage` of devices of which it is known whose they are."""
    sums: defaultdict[str, Counter[tuple[str, Meter]]] = defaultdict(Counter)
    if not usage.num_rows:
        return sums
    usage = usage.combine_chunks()
    devices, starts = _by_device(usage)
    first = usage["hour"].cast(pa.int64()).to_numpy() // _QUARTER_US
    lows, highs = np.minimum.reduceat(first, starts), np.maximum.reduceat(first, starts) + _QUARTERS
    counted = _counted(usage)
    whole = {meter: np.add.reduceat(values.sum(axis=1), starts) for meter, values in counted.items()}
    ends = [*starts[1:].tolist(), usage.num_rows]
    for at, (device, begin, end) in enumerate(zip(devices, starts.tolist(), ends, strict=True)):
        for one in held.get(device, ()):
            if one.begin <= lows[at] and highs[at] <= one.end:
                found = {meter: int(values[at]) for meter, values in whole.items()}
            else:
                quarters = first[begin:end, None] + np.arange(_QUARTERS)
                inside = (one.begin <= quarters) & (quarters < one.end)
                found = {meter: int(values[begin:end][inside].sum()) for meter, values in counted.items()}
            for meter, total in found.items():
                if total:
                    sums[one.payer][one.account, meter] += total
    return sums


def _counted(usage: pa.Table) -> dict[Meter, NDArray[np.int64]]:
    """What each row counts of each meter, by quarters."""
    # rows of the whole device count what has no zone, and those of zones the rest
    whole = pc.equal(usage["zone"], WHOLE_DEVICE).to_numpy(zero_copy_only=False)[:, None]
    return {
        meter: np.where(whole == (meter in WITHOUT_ZONE), _values(usage[name]), 0)
        for name, meter in METER_OF.items()
        if name in usage.column_names
    }


def held_by(contracts: Sequence[RatingContract]) -> dict[TenantDevice, list[Held]]:
    """Whose each device is, and when, within the periods of contracts."""
    found: dict[TenantDevice, list[Held]] = defaultdict(list)
    for contract in contracts:
        for terms in contract.accounts:
            for one in terms.devices:
                begin, end = max(one.begin, contract.start), min(one.end or contract.end, contract.end)
                if begin < end:
                    found[one.of_device].append(Held.of(begin, end, contract.payer, terms.account))
    return found


def _by_device(usage: pa.Table) -> tuple[list[TenantDevice], NDArray[np.int64]]:
    """The devices in their order, and where the rows of each begin."""
    tenant, device = (usage[name].combine_chunks() for name in ("tenant", "device"))
    changes = np.ones(usage.num_rows, np.bool_)
    same = pc.and_(pc.equal(tenant[1:], tenant[:-1]), pc.equal(device[1:], device[:-1]))
    changes[1:] = ~same.to_numpy(zero_copy_only=False)
    # rows of one device follow on each other: the rows in force are sorted
    starts = np.flatnonzero(changes)
    names = (column.take(pa.array(starts)).to_pylist() for column in (tenant, device))
    return [TenantDevice(*name) for name in zip(*names, strict=True)], starts


def _values(column: pa.ChunkedArray) -> NDArray[np.int64]:
    return np.asarray(pc.list_flatten(known_quarters(column)).to_numpy(), np.int64).reshape(len(column), _QUARTERS)


def _quarter(moment: datetime) -> int:
    return int((moment - _EPOCH).total_seconds()) // 900
