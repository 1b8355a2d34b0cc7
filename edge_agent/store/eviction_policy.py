"""What to give up when space or age runs out, and in which order. Pure: handed totals, gives one step at a time.

1. What is older than its class allows is dropped.
2. A class beyond its own quota is downsampled, then dropped, oldest first.
3. Beyond `downsample_above` of the whole quota, classes that may be downsampled are, the last class first.
4. Beyond the whole quota, or when the file system has less than the floor, the last class is dropped, oldest first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from edge_agent.config import BufferSettings, ClassSettings


@dataclass(frozen=True, slots=True)
class EvictionStep:
    """`downsample` or `drop` the oldest of a class until `size` bytes are free. `reason`: of the tombstones."""

    action: Literal["downsample", "drop"]
    class_index: int
    size: int
    reason: str


@dataclass(frozen=True, slots=True)
class StorageUsage:
    """What there is.

    `sizes`: bytes of each class that has records. `tombstones`: bytes of the classes that have none left.
    `downsampleable`: classes that have more to downsample. `free`: bytes that the buffer can still grow by.
    """

    sizes: Mapping[int, int]
    tombstones: int
    downsampleable: frozenset[int]
    free: int

    @property
    def total(self) -> int:
        """All bytes."""
        return sum(self.sizes.values()) + self.tombstones


def next_eviction_step(
    buffer: BufferSettings, classes: Sequence[ClassSettings], usage: StorageUsage
) -> EvictionStep | None:
    """The next step, or None when all is within its bounds."""
    return (
        _own_quota(buffer, classes, usage)
        or _drop_for_floor(buffer, usage)
        or _whole_quota(buffer, usage)
        or _downsample_early(buffer, usage)
    )


def _own_quota(buffer: BufferSettings, classes: Sequence[ClassSettings], usage: StorageUsage) -> EvictionStep | None:
    for index, policy in enumerate(classes):
        size = usage.sizes.get(index, 0)
        if policy.max_bytes is None or size == 0:
            continue
        if index in usage.downsampleable and size > buffer.downsample_above * policy.max_bytes:
            return EvictionStep(
                "downsample", index, int(size - buffer.downsample_above * policy.max_bytes), "downsampled"
            )
        if size > policy.max_bytes:
            return EvictionStep("drop", index, size - policy.max_bytes, "quota")
    return None


def _drop_for_floor(buffer: BufferSettings, usage: StorageUsage) -> EvictionStep | None:
    if usage.free >= buffer.free_space_floor_bytes:
        return None
    return _last_class_first(usage, buffer.free_space_floor_bytes - usage.free, "space")


def _whole_quota(buffer: BufferSettings, usage: StorageUsage) -> EvictionStep | None:
    excess = usage.total - buffer.max_bytes
    return _last_class_first(usage, excess, "quota") if excess > 0 else None


def _downsample_early(buffer: BufferSettings, usage: StorageUsage) -> EvictionStep | None:
    excess = int(usage.total - buffer.downsample_above * buffer.max_bytes)
    return (
        EvictionStep("downsample", max(usage.downsampleable), excess, "downsampled")
        if excess > 0 and usage.downsampleable
        else None
    )


def _last_class_first(usage: StorageUsage, size: int, reason: str) -> EvictionStep | None:
    # Classes stand in order of priority, so the highest index is the least important.
    if usage.downsampleable:
        return EvictionStep("downsample", max(usage.downsampleable), size, "downsampled")
    # Tombstones are not given up: without them nobody would know of the loss.
    return EvictionStep("drop", max(usage.sizes), size, reason) if usage.sizes else None
