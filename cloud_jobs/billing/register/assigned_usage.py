"""What the devices of accounts used in a period, summed straight from the rows of usage: a control beside rating."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cloud_jobs.billing.meters import Meter
from cloud_jobs.billing.rating import RatingContract
from cloud_jobs.billing.rating.cells import WITHOUT_ZONE
from cloud_jobs.billing.rating.cells_of_usage import METER_OF
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.schemas import WHOLE_DEVICE

_QUARTER_US: Final = 900_000_000
_QUARTERS: Final = 4
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
    """For each payer the quantities of its accounts, by account and meter; active days are left out.

    `usage`: rows in force, in the order of tenant and device. Rows of other devices are passed over.
    """
    sums: dict[str, Counter[tuple[str, Meter]]] = {contract.payer: Counter() for contract in contracts}
    return sums | held_usage(held_by(contracts), usage)


def held_usage(
    held: Mapping[TenantDevice, Sequence[Held]], usage: pa.Table
) -> defaultdict[str, Counter[tuple[str, Meter]]]:
    """`assigned_usage` of devices of which it is known whose they are."""
    sums: defaultdict[str, Counter[tuple[str, Meter]]] = defaultdict(Counter)
    for device, rows in _by_device(usage):
        first = rows["hour"].cast(pa.int64()).to_numpy() // _QUARTER_US
        quarters = first[:, None] + np.arange(_QUARTERS)
        # rows of the whole device count what has no zone, and those of zones the rest
        whole = pc.equal(rows["zone"], WHOLE_DEVICE).to_numpy(zero_copy_only=False)[:, None]
        for one in held.get(device, ()):
            inside = (one.begin <= quarters) & (quarters < one.end)
            for name, meter in METER_OF.items():
                counted = inside & (whole == (meter in WITHOUT_ZONE))
                if total := int(_values(rows[name])[counted].sum()):
                    sums[one.payer][one.account, meter] += total
    return sums


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


def _by_device(usage: pa.Table) -> list[tuple[TenantDevice, pa.Table]]:
    if not usage.num_rows:
        return []
    usage = usage.combine_chunks()
    tenant, device = usage["tenant"].combine_chunks(), usage["device"].combine_chunks()
    changes = np.zeros(usage.num_rows, np.bool_)
    changes[0] = True
    if usage.num_rows > 1:
        same = pc.and_(pc.equal(tenant[1:], tenant[:-1]), pc.equal(device[1:], device[:-1]))
        changes[1:] = ~same.to_numpy(zero_copy_only=False)
    # rows of one device follow on each other: the rows in force are sorted
    starts = [*np.flatnonzero(changes).tolist(), usage.num_rows]
    return [
        (TenantDevice(tenant[begin].as_py(), device[begin].as_py()), usage.slice(begin, end - begin))
        for begin, end in pairwise(starts)
    ]


def _values(column: pa.ChunkedArray) -> NDArray[np.int64]:
    return np.asarray(pc.list_flatten(column).to_numpy(), np.int64).reshape(len(column), _QUARTERS)


def _quarter(moment: datetime) -> int:
    return int((moment - _EPOCH).total_seconds()) // 900
