"""What was sent to which region and is not acknowledged: an acknowledgement takes nothing else."""

from __future__ import annotations

from collections import OrderedDict

from telemetry import IntervalSet

MAX_RANGES = 4096
"""Of one region and epoch; beyond it the lowest are forgotten."""
MAX_STREAMS = 64
"""Pairs of region and epoch; beyond it the one that was used longest ago is forgotten."""


class SentSeqs:
    """Record ids that were handed to regions since the agent started.

    What was forgotten, or was sent before a restart, counts as not sent: its acknowledgement is ignored, the records
    are sent again, and the centre removes the duplicates.
    """

    def __init__(self) -> None:
        self._sent: OrderedDict[tuple[str, int], IntervalSet] = OrderedDict()

    def add(self, region: str, epoch: int, seqs: IntervalSet) -> None:
        """These were handed to a region."""
        sent = self._sent.pop((region, epoch), IntervalSet()) | seqs
        if len(sent.ranges) > MAX_RANGES:
            sent = IntervalSet(sent.ranges[-MAX_RANGES:])
        self._sent[region, epoch] = sent
        if len(self._sent) > MAX_STREAMS:
            self._sent.popitem(last=False)

    def take_acked(self, region: str, epoch: int, seqs: IntervalSet) -> IntervalSet:
        """Those of an acknowledgement that were sent to this region; no region will be asked for them any more."""
        safe = self._sent.get((region, epoch), IntervalSet()) & seqs
        if safe:
            for life in [life for life in self._sent if life[1] == epoch]:
                self._sent[life] -= safe
                if not self._sent[life]:
                    del self._sent[life]
        return safe
