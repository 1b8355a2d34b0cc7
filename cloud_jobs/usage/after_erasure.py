"""Records that come after the positions of their hours were erased: what of them needs no position is metered all the
same, upon what is in force. Pure, but for the rows in force that it is handed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from cloud_jobs.fence_versions import FenceVersions
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.schemas import LATE_POSITIONS, QUANTITIES, QUARTERS, WHOLE_DEVICE
from cloud_jobs.lake.seq_ranges import SeqRanges
from cloud_jobs.usage.basis import NO_RECORDS
from cloud_jobs.usage.following import UsageKey
from cloud_jobs.usage.metering import QUARTER_MS, Metered
from cloud_jobs.usage.reading import Arrays
from cloud_jobs.usage.touched_hours import HOUR_MS
from geo.spatial.ragged import Ints
from telemetry import IntervalSet

LATE_COLUMNS: Final = ("epoch", "seq", "content_bytes")
"""What is read of a late record beside its device, its kind and its time."""
WHOLE_COLUMNS: Final = ("seq_ranges", "events", "content_bytes")
"""What is taken of a row in force."""


class WholeRow(NamedTuple):
    """What is in force of a device hour: WHOLE_COLUMNS."""

    seq_ranges: str = NO_RECORDS
    events: Sequence[int] = (0,) * QUARTERS
    content_bytes: Sequence[int] = (0,) * QUARTERS


def meter_late(late: Arrays, in_force: Mapping[UsageKey, WholeRow], names: Sequence[TenantDevice]) -> pa.Table:
    """The rows (schema METERED) that follow those in force: of the whole device with the late records' events and
    bytes, and of LATE_POSITIONS with the positions among them, whose way is not metered.

    `late`: `device`, `t_ms`, `is_position`, `is_event` and LATE_COLUMNS, each record once. A record that is in a row
    already is passed over.
    """
    rows: list[tuple[int, int, str, dict[str, Ints], str]] = []
    hours = late["t_ms"] // HOUR_MS
    for device, hour in sorted({*zip(late["device"].tolist(), hours.tolist(), strict=True)}):
        at = np.flatnonzero((late["device"] == device) & (hours == hour))
        whole = in_force.get((device, hour, WHOLE_DEVICE), WholeRow())
        known = dict(SeqRanges.parse(whole.seq_ranges))
        # a run that died after its commit may be asked for the same records
        pairs = zip(late["epoch"][at].tolist(), late["seq"][at].tolist(), strict=True)
        at = at[[seq not in known.get(epoch, IntervalSet()) for epoch, seq in pairs]]
        if not len(at):
            continue
        quarter = late["t_ms"][at] % HOUR_MS // QUARTER_MS
        events = np.bincount(quarter, late["is_event"][at], QUARTERS).astype(np.int64)
        sizes = np.bincount(quarter, late["content_bytes"][at], QUARTERS).astype(np.int64)
        quantities = {
            "events": np.array(whole.events, np.int64) + events,
            "content_bytes": np.array(whole.content_bytes, np.int64) + sizes,
        }
        rows.append((device, hour, WHOLE_DEVICE, quantities, _joined(whole, late, at)))
        # a segment needs the fixes around it, and those are gone
        positions = at[late["is_position"][at]]
        if len(positions):
            before = in_force.get((device, hour, LATE_POSITIONS), WholeRow())
            rows.append((device, hour, LATE_POSITIONS, {}, _joined(before, late, positions)))
    return _as_metered(rows).table(names, FenceVersions((), 0))


def _joined(row: WholeRow, late: Arrays, at: Ints) -> str:
    epochs, seqs = late["epoch"][at], late["seq"][at]
    more = {int(epoch): IntervalSet.of(seqs[epochs == epoch].tolist()) for epoch in np.unique(epochs)}
    return SeqRanges.union([SeqRanges.parse(row.seq_ranges), SeqRanges.of(more)]).text()


def _as_metered(rows: Sequence[tuple[int, int, str, dict[str, Ints], str]]) -> Metered:
    # a row of late positions counts nothing
    nothing = np.zeros(QUARTERS, np.int64)
    return Metered(
        device=[row[0] for row in rows],
        hour=[row[1] for row in rows],
        zone=[row[2] for row in rows],
        quantities=tuple(
            np.array([row[3].get(name, nothing) for row in rows], np.int64).reshape(-1, QUARTERS) for name in QUANTITIES
        ),
        seq_ranges=[row[4] for row in rows],
    )
