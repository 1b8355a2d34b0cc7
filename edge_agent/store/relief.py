"""What to give up when space or age runs out, and in which order. Pure: handed totals, gives one step at a time.

1. What is older than its class allows is dropped.
2. A class beyond its own quota is thinned, then dropped, oldest first.
3. Beyond `thin_above` of the whole quota, classes that may be thinned are, the last class first.
4. Beyond the whole quota, or when the file system has less than the floor, the last class is dropped, oldest first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from edge_agent.config import BufferSettings, ClassSettings


@dataclass(frozen=True, slots=True)
class Relief:
    """One step: `thin` or `drop` the oldest of a class until `size` bytes are free. `reason` goes on the tombstones."""

    action: Literal["thin", "drop"]
    class_index: int
    size: int
    reason: str


@dataclass(frozen=True, slots=True)
class Usage:
    """What there is.

    `sizes`: bytes of each class that has records. `tombstones`: bytes of the classes that have none left. `thinnable`:
    classes of which something can still be thinned. `free`: bytes that the buffer can still grow by.
    """

    sizes: Mapping[int, int]
    tombstones: int
    thinnable: frozenset[int]
    free: int

    @property
    def whole(self) -> int:
        """All bytes."""
        return sum(self.sizes.values()) + self.tombstones


def next_relief(buffer: BufferSettings, classes: Sequence[ClassSettings], usage: Usage) -> Relief | None:
    """The next step, or None when all is within its bounds."""
    return (
        _own_quota(buffer, classes, usage)
        or _drop_for_floor(buffer, usage)
        or _whole_quota(buffer, usage)
        or _thin_early(buffer, usage)
    )


def _own_quota(buffer: BufferSettings, classes: Sequence[ClassSettings], usage: Usage) -> Relief | None:
    for index, one in enumerate(classes):
        size = usage.sizes.get(index, 0)
        if one.max_bytes is None or size == 0:
            continue
        if index in usage.thinnable and size > buffer.thin_above * one.max_bytes:
            return Relief("thin", index, int(size - buffer.thin_above * one.max_bytes), "thinned")
        if size > one.max_bytes:
            return Relief("drop", index, size - one.max_bytes, "quota")
    return None


def _drop_for_floor(buffer: BufferSettings, usage: Usage) -> Relief | None:
    if usage.free >= buffer.free_space_floor_bytes:
        return None
    return _from_the_last(usage, buffer.free_space_floor_bytes - usage.free, "space")


def _whole_quota(buffer: BufferSettings, usage: Usage) -> Relief | None:
    excess = usage.whole - buffer.max_bytes
    return _from_the_last(usage, excess, "quota") if excess > 0 else None


def _thin_early(buffer: BufferSettings, usage: Usage) -> Relief | None:
    excess = int(usage.whole - buffer.thin_above * buffer.max_bytes)
    return Relief("thin", max(usage.thinnable), excess, "thinned") if excess > 0 and usage.thinnable else None


def _from_the_last(usage: Usage, size: int, reason: str) -> Relief | None:
    if usage.thinnable:
        return Relief("thin", max(usage.thinnable), size, "thinned")
    return Relief("drop", max(usage.sizes), size, reason) if usage.sizes else None
