"""Records that come after the positions of their hours were erased: what of them needs no position is metered all the
same, upon what is in force. Pure, but for the rows in force that it is handed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from cloud_jobs.fence_versions import FenceVersions
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.schemas import LATE_POSITIONS, OBSERVED, QUANTITIES, QUARTERS, WHOLE_DEVICE
from cloud_jobs.lake.seq_ranges import SeqRanges
from cloud_jobs.lake.vehicle_counters import counters_texts
from cloud_jobs.usage.basis import NO_RECORDS, unreadable_text
from cloud_jobs.usage.following import UsageKey
from cloud_jobs.usage.metering import QUARTER_MS, Metered
from cloud_jobs.usage.reading import NOT_RAW, REASONS, Arrays
from cloud_jobs.usage.touched_hours import HOUR_MS
from geo.spatial.ragged import Ints
from waybill.record import IntervalSet

LATE_COLUMNS: Final = ("epoch", "seq", "content_bytes")
"""What is read of a late record beside its device, its kind and its time."""
WHOLE_COLUMNS: Final = ("seq_ranges", "events", "content_bytes", "unreadable", "counters", *OBSERVED)
"""What is taken of a row in force."""


_COUNTED_LATE: Final = {
    "events": "is_event",
    "content_bytes": "content_bytes",
    "messages": "is_readable",
    "positions": "is_position",
}
"""What a late record adds to, and the array that says how much."""


WholeRow = Mapping[str, Any]
"""What is in force of a device hour: WHOLE_COLUMNS; nothing of an hour without a row."""


class _LateRow(NamedTuple):
    device: int
    hour: int
    zone: str
    seq_ranges: str
    quantities: Mapping[str, Ints] = {}
    unreadable: str = ""
    counters: str = ""


def meter_late(late: Arrays, in_force: Mapping[UsageKey, WholeRow], names: Sequence[TenantDevice]) -> pa.Table:
    """The rows (schema METERED) that follow those in force: of the whole device with the late records' events and
    bytes, and of LATE_POSITIONS with the positions among them, whose way is not metered.

    `late`: `device`, `t_ms`, `is_position`, `is_event`, `is_readable`, `is_odometer`, `reason`, `counter` and
    LATE_COLUMNS, each record once. A record that is in a row already is passed over.
    """
    rows: list[_LateRow] = []
    hours = late["t_ms"] // HOUR_MS
    for device, hour in sorted({*zip(late["device"].tolist(), hours.tolist(), strict=True)}):
        at = np.flatnonzero((late["device"] == device) & (hours == hour))
        whole = in_force.get((device, hour, WHOLE_DEVICE), {})
        known = dict(SeqRanges.parse(whole.get("seq_ranges", NO_RECORDS)))
        # a run that died after its commit may be asked for the same records
        pairs = zip(late["epoch"][at].tolist(), late["seq"][at].tolist(), strict=True)
        at = at[[seq not in known.get(epoch, IntervalSet()) for epoch, seq in pairs]]
        if not len(at):
            continue
        quarter = late["t_ms"][at] % HOUR_MS // QUARTER_MS
        # the ways stay as they are
        quantities = {
            name: np.array(whole.get(name) or (0,) * QUARTERS, np.int64)
            for name in ("events", "content_bytes", *OBSERVED)
        }
        for name, column in _COUNTED_LATE.items():
            quantities[name] += np.bincount(quarter, late[column][at], QUARTERS).astype(np.int64)
        unreadable = _unreadable(whole.get("unreadable"), quarter, late["reason"][at])
        (counters,) = counters_texts(
            [whole.get("counters") or ""], quarter, late["is_odometer"][at], late["counter"][at]
        )
        rows.append(_LateRow(device, hour, WHOLE_DEVICE, _joined(whole, late, at), quantities, unreadable, counters))
        # a segment needs the fixes around it, and those are gone
        positions = at[late["is_position"][at]]
        if len(positions):
            before = in_force.get((device, hour, LATE_POSITIONS), {})
            rows.append(_LateRow(device, hour, LATE_POSITIONS, _joined(before, late, positions)))
    return _as_metered(rows).table(names, FenceVersions((), 0))


def _joined(row: WholeRow, late: Arrays, at: Ints) -> str:
    epochs, seqs = late["epoch"][at], late["seq"][at]
    more = {int(epoch): IntervalSet.of(seqs[epochs == epoch].tolist()) for epoch in np.unique(epochs)}
    return SeqRanges.union([SeqRanges.parse(row.get("seq_ranges", NO_RECORDS)), SeqRanges.of(more)]).text()


def _unreadable(before: str | None, quarter: Ints, reason: Ints) -> str:
    counts: dict[str, list[int]] = json.loads(before) if before else {}
    for at, code in zip(quarter.tolist(), reason.tolist(), strict=True):
        if code != NOT_RAW:
            counts.setdefault(REASONS[code], [0] * QUARTERS)[at] += 1
    return unreadable_text(counts)


def _as_metered(rows: Sequence[_LateRow]) -> Metered:
    # a row of late positions counts nothing
    nothing = np.zeros(QUARTERS, np.int64)

    def amounts(names: Sequence[str]) -> tuple[Any, ...]:
        found = ([row.quantities.get(name, nothing) for row in rows] for name in names)
        return tuple(np.array(one, np.int64).reshape(-1, QUARTERS) for one in found)

    return Metered(
        device=[row.device for row in rows],
        hour=[row.hour for row in rows],
        zone=[row.zone for row in rows],
        quantities=amounts(QUANTITIES),
        observed=amounts(OBSERVED),
        unreadable=[row.unreadable for row in rows],
        counters=[row.counters for row in rows],
        seq_ranges=[row.seq_ranges for row in rows],
    )
