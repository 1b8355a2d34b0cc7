"""Whether a partition that gives nothing has nothing left. Pure.

A subscription may be connected and get nothing although there is something: of a dispatcher that is stuck, or a broker
that is halted. So the cluster is asked where the partition ends, and who finds that it withholds something subscribes
anew. Only of a single partition does the client say where it ends.
"""

from __future__ import annotations

from typing import Final

from runtime.pulsar_positions import EntryPosition

__all__ = ["ASK_S", "WITHHELD", "Silence"]

ASK_S: Final = 10.0
"""While nothing comes, the end is asked for so often."""
WITHHELD: Final = "the cluster has messages that it does not give"
"""Why a subscription is given up."""
_TIMES_BEYOND: Final = 2
"""What came just now is on its way: only an end that is asked for again, with nothing in between, is withheld."""


class Silence:
    """What is known of a partition's end. `now_s`: of a clock that only goes forward."""

    def __init__(self) -> None:
        self._read: EntryPosition | None = None
        self._asked_s = 0.0
        self._beyond = 0

    @property
    def is_withheld(self) -> bool:
        """Whether the cluster has messages that it does not give."""
        return self._beyond >= _TIMES_BEYOND

    def problem(self, *, is_connected: bool) -> str:
        """Why what there is may not come; empty when nothing is wrong."""
        if not is_connected:
            return "the connection to the cluster is lost"
        return WITHHELD if self.is_withheld else ""

    def on_read(self, position: EntryPosition, now_s: float) -> None:
        """Everything up to there was read."""
        self._read, self._asked_s, self._beyond = position, now_s, 0

    def is_to_ask(self, now_s: float) -> bool:
        """Whether it is time to ask where the partition ends."""
        return self._read is not None and now_s - self._asked_s >= ASK_S

    def on_end(self, position: EntryPosition, now_s: float) -> None:
        """The cluster says that the partition ends there."""
        self._asked_s = now_s
        self._beyond = self._beyond + 1 if self._read is not None and position > self._read else 0
