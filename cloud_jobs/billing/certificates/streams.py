"""The streams of a device that may hold records of a period, and what each of them says of it. Pure.

The number of an epoch begins with the wall clock of the device when the buffer was made, which is believed only where
it agrees with the rest: not if it was drawn by chance beside an earlier one, nor if no statement ever reached it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from cloud_jobs.lake.coverage import Coverage
from waybill.record.record import EPOCH_RANDOM_BITS

_US_PER_MS: Final = 1000
DRAWN_BY_CHANCE_US: Final = ((1 << 35 >> EPOCH_RANDOM_BITS) + 1) * _US_PER_MS
"""A buffer whose clock was not set takes a number of up to so much after the one before it (17 minutes)."""


class StreamState(IntEnum):
    """What one stream says of a period up to its end, the worst last."""

    COMPLETE = 0
    DECLARED_LOSS = 1
    SILENT = 2
    OPEN = 3


def began_us(epoch: int) -> int:
    """When the buffer of an epoch was made by the device's clock of then, in microseconds since 1970."""
    return (epoch >> EPOCH_RANDOM_BITS) * _US_PER_MS


def stream_state(coverage: Coverage, end_us: int) -> StreamState:
    """What the coverage of one stream says of all that it recorded before a moment (microseconds since 1970)."""
    if coverage.complete_until_us >= end_us or _is_stated_whole(coverage, end_us):
        return StreamState.DECLARED_LOSS if coverage.tombstones and coverage.declared_lost else StreamState.COMPLETE
    return StreamState.OPEN if coverage.missing else StreamState.SILENT


def relevant_streams(streams: Mapping[int, Coverage], start_us: int, end_us: int) -> dict[int, Coverage]:
    """By their epochs those streams of a device that may hold records of the period, in order.

    Not one that a later buffer replaced before the period: that buffer was made after the last statement of this one.
    Not one whose buffer was made after the period, if an earlier one is left: until then the device wrote into that
    one, which has to account for the whole period by itself.
    """
    # nearly all devices have one, and it is theirs alone
    if len(streams) == 1:
        return dict(streams)
    ordered = dict(sorted(streams.items()))
    begun = _believed(ordered)
    left = {
        epoch: coverage
        for epoch, coverage in ordered.items()
        if not any(coverage.stated_us <= at <= start_us for later, at in begun.items() if later > epoch)
    }
    # where none is left the device is known by later buffers alone, and those have to account for the period
    earlier = any(began_us(epoch) < end_us for epoch in left)
    return {epoch: one for epoch, one in left.items() if not (earlier and begun.get(epoch, 0) >= end_us)}


def _believed(ordered: Mapping[int, Coverage]) -> dict[int, int]:
    """When those buffers were made whose numbers say it: not what may have been drawn by chance upon the one before,
    and not by a clock that was ahead of all that the centre heard of the device since."""
    found, before = dict[int, int](), -DRAWN_BY_CHANCE_US
    for epoch, coverage in ordered.items():
        # also of a number that is not believed: the next one may have been drawn upon it
        at = began_us(epoch)
        if before + DRAWN_BY_CHANCE_US <= at <= coverage.stated_us:
            found[epoch] = at
        before = at
    return found


def _is_stated_whole(coverage: Coverage, end_us: int) -> bool:
    """Whether a statement of that moment or later was received with all up to its head."""
    return coverage.stated_us >= end_us and coverage.stated_head <= coverage.covered_through
