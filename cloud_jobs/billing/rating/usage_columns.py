"""Rows of usage as arrays: of the devices that are asked for, and of each key the row that is in force."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cloud_jobs.billing.errors import BadUsage, ContradictoryUsage
from cloud_jobs.billing.rating.calendars import EPOCH, Ints
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.schemas import QUARTERS, WHOLE_DEVICE

HOUR_US: Final = 3_600_000_000
BY_DEVICE: Final = frozenset({"events", "content_bytes"})
"""The columns that rows of WHOLE_DEVICE count; the rows of zones count the others."""
DIGEST_BYTES: Final = 16
MOST: Final = 1 << 62
"""What the quantities of all rows together stay below, so that no sum of 64 bits overflows."""


class UsageColumns:
    """In the order of device (its number), zone (its number in `zones`) and hour (since 1970).

    `quantities`: for each of `names` an array of (rows, 4), the quarters of the hour. `digests`: 16 bytes each.
    Raises BadUsage, ContradictoryUsage.
    """

    def __init__(
        self, usage: pa.Table, devices: dict[TenantDevice, int], hours: tuple[int, int], names: Sequence[str]
    ) -> None:
        number, taken = _device_numbers(usage, devices)
        hour = pc.cast(usage["hour"], pa.int64()).to_numpy() // HOUR_US
        taken &= (hours[0] <= hour) & (hour < hours[1])
        rows = np.flatnonzero(taken)
        zones = usage["zone"].combine_chunks().dictionary_encode()
        self.zones: list[str] = zones.dictionary.to_pylist()
        zone = zones.indices.to_numpy(zero_copy_only=False).astype(np.int64)[rows]
        number, hour = number[rows], hour[rows]
        commit = usage["commit_number"].to_numpy()[rows]
        width = hours[1] - hours[0]
        key = (number * max(1, len(self.zones)) + zone) * width + (hour - hours[0])
        order = np.lexsort((commit, key))
        last = np.ones(len(order), np.bool_)
        last[:-1] = np.diff(key[order]) != 0
        kept = order[last]
        self.device: Ints = number[kept]
        self.zone: Ints = zone[kept]
        self.hour: Ints = hour[kept]
        taken_rows = rows[kept]
        self.whole_device = np.array([name == WHOLE_DEVICE for name in self.zones], np.bool_)[self.zone]
        every = [_quarters(usage[name]) for name in names]
        digests = _digests(usage["digest"])
        again = np.flatnonzero(~last[:-1] & (np.diff(commit[order]) == 0)) if len(order) else np.zeros(0, np.int64)
        _refuse_contradictions(usage, rows[order[again]], rows[order[again + 1]], every, digests)
        self.quantities = tuple(
            np.where(((self.whole_device == (name in BY_DEVICE))[:, None]), quarters[taken_rows], 0)
            for name, quarters in zip(names, every, strict=True)
        )
        self.digests: Any = digests[taken_rows]

    @property
    def first_quarter(self) -> Ints:
        """The number of the first quarter of each hour."""
        found: Ints = self.hour * QUARTERS
        return found


def _device_numbers(usage: pa.Table, devices: dict[TenantDevice, int]) -> tuple[Ints, Any]:
    """The number of the device of each row, and which rows are of one that is asked for."""
    tenants = sorted({device.tenant for device in devices})
    names = sorted({device.device for device in devices})
    of_tenant, of_name = {name: at for at, name in enumerate(tenants)}, {name: at for at, name in enumerate(names)}
    pairs = sorted((of_tenant[one.tenant] * len(names) + of_name[one.device], at) for one, at in devices.items())
    known, numbers = np.array(pairs, np.int64).reshape(-1, 2).T
    tenant = pc.fill_null(pc.index_in(usage["tenant"], pa.array(tenants, pa.string())), -1).to_numpy()
    name = pc.fill_null(pc.index_in(usage["device"], pa.array(names, pa.string())), -1).to_numpy()
    pair = tenant.astype(np.int64) * len(names) + name
    at = np.minimum(np.searchsorted(known, pair), max(0, len(known) - 1))
    if not len(known):
        return np.zeros(len(pair), np.int64), np.zeros(len(pair), np.bool_)
    return numbers[at], (tenant >= 0) & (name >= 0) & (known[at] == pair)


def known_quarters(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A quantity that rows may not state, with 0 where they do not."""
    return pc.coalesce(column, pa.scalar([0] * QUARTERS, column.type)) if column.null_count else column


def _quarters(column: pa.ChunkedArray) -> Ints:
    lists = known_quarters(column).combine_chunks()
    lengths = pc.list_value_length(lists)
    if len(lists) and pc.min_max(lengths).as_py() != {"min": QUARTERS, "max": QUARTERS}:
        raise BadUsage("a quantity of usage is not a list of the four quarters of its hour")
    values: Ints = lists.flatten().to_numpy(zero_copy_only=False).astype(np.int64).reshape(-1, QUARTERS)
    if len(values) and (values.min() < 0 or int(values.max()) * values.size >= MOST):
        raise BadUsage("a quantity of usage is negative, or larger than anything that can be metered")
    return values


def _digests(column: pa.ChunkedArray) -> Any:
    try:
        fixed = pc.cast(pc.cast(column.combine_chunks(), pa.binary()), pa.binary(DIGEST_BYTES))
    except pa.ArrowInvalid as error:
        raise BadUsage(f"a digest of usage is not {DIGEST_BYTES} characters: {error}") from error
    held = fixed.buffers()[1]
    everything = np.frombuffer(held, f"S{DIGEST_BYTES}") if held is not None else np.zeros(0, f"S{DIGEST_BYTES}")
    return everything[fixed.offset : fixed.offset + len(fixed)]


def _refuse_contradictions(usage: pa.Table, one: Ints, other: Ints, quarters: list[Ints], digests: Any) -> None:
    """The same row twice is no contradiction; two of one key and commit that differ are."""
    differ = digests[one] != digests[other]
    for values in quarters:
        differ |= (values[one] != values[other]).any(axis=1)
    if differ.any():
        row = usage.slice(int(one[np.flatnonzero(differ)[0]]), 1)
        tenant, device, zone = (row[name][0].as_py() for name in ("tenant", "device", "zone"))
        hour = EPOCH + timedelta(microseconds=pc.cast(row["hour"], pa.int64())[0].as_py())
        raise ContradictoryUsage(tenant, device, hour, zone)
