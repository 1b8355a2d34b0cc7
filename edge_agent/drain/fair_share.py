"""Who may send next: live data first, with a share that the backlog is sure of."""

from __future__ import annotations

MEMORY_BYTES = 1 << 20
"""What was sent longer ago than this counts half, and so on: an old imbalance is not made up for."""


class FairShare:
    """Divides bytes between live data and the backlog while both wait."""

    def __init__(self, backlog_share: float) -> None:
        self._share = backlog_share
        self._all = 0.0
        self._backlog = 0.0

    def choose_backlog(self, *, live_waits: bool, backlog_waits: bool) -> bool:
        """Whether the next bytes belong to the backlog. Where only one of them waits, it begins anew."""
        if live_waits and backlog_waits:
            return self._backlog < self._share * self._all or self._share >= 1
        self._all = self._backlog = 0.0
        return backlog_waits

    def on_sent(self, size: int, *, backlog: bool) -> None:
        """Bytes were sent."""
        self._all += size
        self._backlog += size if backlog else 0
        if self._all > MEMORY_BYTES:
            self._all, self._backlog = self._all / 2, self._backlog / 2
