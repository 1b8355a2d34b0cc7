"""What distinguishes an event from every other: the fix that ends the segment in which it happened."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from geo.spatial.events import GeofenceEvent
from geo.spatial.ragged import Ints
from geo.spatial.tracks import Tracks


def end_fixes(tracks: Tracks, events: Sequence[GeofenceEvent]) -> Ints:
    """For each event of `tracks` the row of the fix that ends its segment: the first kept one at its time or after it.

    Times of events are whole milliseconds, as those of fixes are: where both are equal, that fix is meant, also if the
    segment begins there.
    """
    device, t_ms = (np.array([event[at] for event in events], dtype=np.int64) for at in (0, 1))
    kept = tracks.fixes.device[tracks.row], tracks.fixes.t_ms[tracks.row]
    # events before fixes: where both are of one time, the fix is at or after the event
    order = np.lexsort(
        (
            np.repeat([0, 1], [len(events), len(tracks.row)]),
            np.concatenate([t_ms, kept[1]]),
            np.concatenate([device, kept[0]]),
        )
    )
    is_event = order < len(events)
    after = np.cumsum(~is_event)[is_event]
    ends = np.zeros(len(events), dtype=np.int64)
    ends[order[is_event]] = tracks.row[after]
    assert (tracks.fixes.device[ends] == device).all(), "an event lies on a segment of its device"
    return ends
