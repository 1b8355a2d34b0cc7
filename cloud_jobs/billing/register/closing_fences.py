"""What the fences of a snapshot mean for a closing: whether usage was computed with them, and which are refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cloud_jobs.applied_fences import fences_number
from cloud_jobs.lake.snapshot_reads import reference_rows
from cloud_jobs.lake.snapshots import LakeState
from cloud_jobs.lake.tables import Lake
from geo.reference.in_force import published_fences

MAX_NAMED: Final = 20
"""So many refused publications are named in a closing; there may be as many as somebody publishes."""
_OTHER: Final = "usage was computed with other fences than those of the snapshot"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosingFences:
    """`refused`: publications of fences that cannot be used, in words; what they were to replace was metered.

    `open_end`: why no closing is final; None: usage was computed with the fences of the snapshot.
    """

    refused: tuple[str, ...] = ()
    open_end: str | None = None


def closing_fences(lake: Lake, snapshot: LakeState) -> ClosingFences:
    """The fences of a snapshot, as every closing of it sees them. Raises LakeError."""
    found = published_fences(reference_rows(lake, snapshot, "fence"))
    # usage that was never computed states nothing; without fences there is nothing that it could lack
    is_same = (
        not found.features if snapshot.usage_fences is None else snapshot.usage_fences == fences_number(found.features)
    )
    refused = [str(one) for one in found.refused[:MAX_NAMED]]
    if more := len(found.refused) - MAX_NAMED:
        refused += [f"and {more} more"] if more > 0 else []
    return ClosingFences(refused=tuple(refused), open_end=None if is_same else _OTHER)
