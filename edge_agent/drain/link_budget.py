"""Limits on sending: rate, data plan, and classes that wait for another kind of link."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from edge_agent.config import MAX_CLASSES, AgentSettings, ClassSettings
from edge_agent.store.database import BufferCounters
from waybill.daemon.backoff import TokenBucket

# Bytes on the wire per UTC day and month.


class DataUsage(NamedTuple):
    """Bytes in the UTC day `day` (20261121) and month `month` (202611)."""

    day: int = 0
    day_bytes: int = 0
    month: int = 0
    month_bytes: int = 0

    def add(self, wall_s: float, size: int) -> DataUsage:
        """Adds bytes at a time; a new day or month starts from zero."""
        now = datetime.fromtimestamp(wall_s, UTC)
        day, month = int(now.strftime("%Y%m%d")), int(now.strftime("%Y%m"))
        day_bytes = size + (self.day_bytes if day == self.day else 0)
        return DataUsage(day, day_bytes, month, size + (self.month_bytes if month == self.month else 0))


METERED_LINKS = ("cellular", "satellite")
"""Kinds of link that count against the plan."""
LINK_CHECK_S = 1.0
PACKET_OVERHEAD = 0.04
"""Estimated TCP and IP headers for each byte of payload, until the kernel has counted them."""
_NAMES = ("wire_day", "wire_day_bytes", "wire_month", "wire_month_bytes")


class LinkBudget:
    """Used by the drain's thread."""

    def __init__(
        self, settings: AgentSettings, counters: BufferCounters, wall_s: Callable[[], float] = time.time
    ) -> None:
        link = settings.link
        self._settings = link
        self._counters = counters
        self._wall_s = wall_s
        self._classes = settings.classes
        self._bucket = TokenBucket(link.bytes_per_s, link.burst_bytes) if link.bytes_per_s else None
        self.link: str | None = link_in(link.link_file) or link.link
        """The kind of link in use, if known."""
        self._looked_s = float("-inf")
        self._estimated = 0.0
        self._counted = (0, 0)
        self.sent_bytes = 0
        self.received_bytes = 0

    @property
    def usage(self) -> DataUsage:
        return DataUsage(*(self._counters.value(name) for name in _NAMES))

    def wait_s(self, now_s: float) -> float:
        """Seconds until the rate limit allows sending."""
        # A send may overdraw the bucket, because batch sizes are not known before.
        if self._bucket is None or self._bucket.tokens(now_s) > 0:
            return 0.0
        return self._bucket.wait_s(1, now_s)

    def update_link(self, now_s: float) -> None:
        """Reads the kind of link at most once a second."""
        if now_s - self._looked_s >= LINK_CHECK_S:
            self._looked_s = now_s
            self.link = link_in(self._settings.link_file) or self._settings.link

    @property
    def is_metered(self) -> bool:
        """Whether the link counts against the plan; an unknown link may be expensive."""
        return self.link is None or self.link in METERED_LINKS

    def allowed_classes(self) -> frozenset[int]:
        left = self._left()
        if left <= 0:
            return frozenset()
        only_urgent = left <= self._settings.plan_reserve
        named = {
            index
            for index, one in enumerate(self._classes)
            if self._may_use_link(one) and (one.urgent or not only_urgent)
        }
        # Batches of classes that left the settings are still stored, and no rule holds them back.
        return frozenset(named | set(range(len(self._classes), MAX_CLASSES)))

    def held_classes(self) -> dict[str, str]:
        """The classes that may not be sent now, each with its reason: `link` or `plan`."""
        allowed = self.allowed_classes()
        return {
            one.name: "plan" if self._may_use_link(one) else "link"
            for index, one in enumerate(self._classes)
            if index not in allowed
        }

    def _may_use_link(self, one: ClassSettings) -> bool:
        return not one.links or self.link in one.links

    def _left(self) -> float:
        """The smaller remaining share of the plans."""
        usage = self.usage.add(self._wall_s(), 0)
        plans = ((self._settings.bytes_per_day, usage.day_bytes), (self._settings.bytes_per_month, usage.month_bytes))
        shares = (1 - used / plan for plan, used in plans if plan is not None)
        return min(shares, default=1.0) if self.is_metered else 1.0

    def charge_estimate(self, now_s: float, size: int) -> None:
        """Charges a message before it is sent."""
        estimate = size * (1 + PACKET_OVERHEAD)
        self._estimated += estimate
        if self._bucket:
            self._bucket.take(estimate, now_s)

    def on_connected(self) -> None:
        self._counted = (0, 0)
        self._estimated = 0.0

    def charge_counted(self, now_s: float, sent: int, received: int) -> None:
        """Charges what the kernel counted on this connection; corrects the estimates."""
        new_sent, new_received = sent - self._counted[0], received - self._counted[1]
        if new_sent <= 0 and new_received <= 0:
            return
        self._counted = (sent, received)
        self.sent_bytes += new_sent
        self.received_bytes += new_received
        if self._bucket:
            # The estimate was charged when it was sent; this corrects the difference.
            self._bucket.take(new_sent - self._estimated, now_s)
        self._estimated = 0.0
        if self.is_metered:
            self._add_usage(new_sent + new_received)

    def _add_usage(self, size: int) -> None:
        before = self.usage
        after = before.add(self._wall_s(), size)
        # Lazily: it changes with each packet, and a sync would wear the flash.
        for name, was, becomes in zip(_NAMES, before, after, strict=True):
            self._counters.add(name, becomes - was, lazily=True)


def link_in(file: Path | None) -> str | None:
    """The first word of the file; None if it cannot be read."""
    if file is None:
        return None
    try:
        words = file.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError):
        return None
    return words[0] if words else None
