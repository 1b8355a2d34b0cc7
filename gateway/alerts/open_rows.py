"""What is open at the anchors of devices, as it is held: rows of a few bytes, by slot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from gateway.alerts.slot_rows import Records
from geo.spatial.open_visits import OpenVisits
from geo.spatial.ragged import Ints
from geo.spatial.stays import Stays

VISIT: Final = np.dtype(
    [
        ("fence", np.int32),
        ("start_ms", np.float64),
        ("entered", np.bool_),
        ("known", np.bool_),
        ("dwelt", np.bool_),
        ("doubt_ms", np.float64),
        ("crossed", np.bool_),
        ("away", np.bool_),
        ("epoch", np.int64),
        ("seq", np.int64),
        ("number", np.int32),
        ("dwell_epoch", np.int64),
        ("dwell_seq", np.int64),
        ("dwell_number", np.int32),
    ]
)
"""A row of `OpenVisits`; and the record id and the number (`event_id`) of the event that its doubt would be, and of a
dwell that is held back."""
SPEEDING: Final = np.dtype(
    [
        ("fence", np.int32),
        ("start_ms", np.float64),
        ("speed_mps", np.float64),
        ("known", np.bool_),
        ("said_mps", np.float64),
        ("epoch", np.int64),
        ("seq", np.int64),
        ("number", np.int32),
    ]
)
"""A stretch over the limit that goes on at the anchor. `said_mps`: what was reported of it, NaN: nothing yet."""


@dataclass(frozen=True, slots=True, eq=False)
class OpenRows:
    """Rows (VISIT and SPEEDING) with the part that each is of, ascending."""

    visit_part: Ints
    visits: Records
    speeding_part: Ints
    speeding: Records


def open_visits(owner: Ints, rows: Records) -> OpenVisits:
    """Rows (VISIT), sorted by owner and fence, for the engine."""
    columns = {name: rows[name] for name in OpenVisits.__slots__[2:]}
    return OpenVisits(device=owner, fence=rows["fence"].astype(np.int64), **columns)


def open_stretches(owner: Ints, rows: Records, until_ms: Ints) -> Stays:
    """Rows (SPEEDING) for the engine; `until_ms`: the time of each owner's anchor."""
    none, zeros = np.zeros(len(rows), dtype=np.bool_), np.zeros(len(rows), dtype=np.int64)
    fence, end_ms = rows["fence"].astype(np.int64), until_ms[owner].astype(np.float64)
    return Stays(owner, fence, zeros, rows["start_ms"].copy(), end_ms, none, none, rows["speed_mps"].copy())
