"""What may be sent now: a rate, a data plan, and classes that wait for a cheaper link. Pure: handed time and counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from edge_agent.config import MAX_CLASSES, ClassSettings, LinkSettings

PACKET_OVERHEAD = 0.04
"""Headers of TCP and IP for each byte of payload, before the kernel has counted the real ones."""


@dataclass(frozen=True, slots=True)
class DataUsage:
    """Bytes on the wire in the UTC day and month that `day` (20261121) and `month` (202611) name."""

    day: int = 0
    day_bytes: int = 0
    month: int = 0
    month_bytes: int = 0

    def add(self, wall_s: float, size: int) -> DataUsage:
        """With bytes that were sent or received at a time; a new day or month begins with nothing."""
        now = datetime.fromtimestamp(wall_s, UTC)
        day, month = int(now.strftime("%Y%m%d")), int(now.strftime("%Y%m"))
        day_bytes = size + (self.day_bytes if day == self.day else 0)
        return DataUsage(day, day_bytes, month, size + (self.month_bytes if month == self.month else 0))


class LinkPolicy:
    """Which classes may be sent over which link with what is left of the plan."""

    def __init__(self, settings: LinkSettings, classes: Sequence[ClassSettings]) -> None:
        self._settings = settings
        self._classes = classes

    def is_metered(self, link: str | None) -> bool:
        """Whether this kind of link counts against the plan."""
        return link is None or link in self._settings.metered

    def allowed_classes(self, link: str | None, usage: DataUsage) -> frozenset[int]:
        """The classes that may be sent, by index. `usage`: today and this month."""
        left = self._left(usage) if self.is_metered(link) else 1.0
        if left <= 0:
            return frozenset()
        only_urgent = left <= self._settings.plan_reserve
        named = range(len(self._classes))
        allowed = {index for index in named if self._may(self._classes[index], link, only_urgent=only_urgent)}
        return frozenset(allowed | set(range(len(self._classes), MAX_CLASSES)))

    @staticmethod
    def _may(one: ClassSettings, link: str | None, *, only_urgent: bool) -> bool:
        return (not one.links or link in one.links) and (one.urgent or not only_urgent)

    def _left(self, usage: DataUsage) -> float:
        """The smaller share of a plan that is left."""
        plans = (
            (self._settings.bytes_per_day, usage.day_bytes),
            (self._settings.bytes_per_month, usage.month_bytes),
        )
        return min((1 - used / plan for plan, used in plans if plan is not None), default=1.0)
