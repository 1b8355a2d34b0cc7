"""What goes wrong in the demo's drive: each fault at its place of it, and whether it happened, and for how long."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from simulator import VehicleMessage

__all__ = ["FaultFindings", "FaultSchedule"]

_ASKED_EVERY_S: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultFindings:
    """Which faults happened in a drive, and for how long. None: it did not happen.

    `stored_while_cut`: records that the vehicles of the cut region had and could not deliver when it was healed.
    `dead_s`: from the SIGKILL until the agent was started again. `cut_at_least_s`: so long the cut was meant to be.
    """

    region: str
    killed: str
    silent: str
    cut_at_least_s: float
    cut_s: float | None = None
    stored_while_cut: int = 0
    dead_s: float | None = None
    is_silenced: bool = False

    @property
    def holds(self) -> bool:
        """Whether each fault happened, and the cut lasted and kept something back: else the drive proves nothing."""
        return (
            self.cut_s is not None
            and self.cut_s >= self.cut_at_least_s
            and self.stored_while_cut > 0
            and self.dead_s is not None
            and self.is_silenced
        )

    @property
    def found(self) -> str:
        """In words."""
        uplink, agent = f"uplink of {self.region}", f"agent of {self.killed}"
        cut = f"cut for {self.cut_s:.1f} s, {self.stored_while_cut:,} records waited" if self.cut_s else "never cut"
        dead = f"dead for {self.dead_s:.1f} s" if self.dead_s is not None else "never killed"
        return f"{uplink} {cut}; {agent} {dead}; {self.silent} {'' if self.is_silenced else 'never '}lost its link"


class FaultSchedule:
    """Faults, each at its share of a drive. The drive's thread stops at each until the thread that makes them did.

    So a fault has its place among the messages however late the drive is. `steps`: pairs of share and act.
    """

    def __init__(self, steps: Iterable[tuple[float, Callable[[], None]]]) -> None:
        self._steps = sorted(steps, key=lambda step: step[0])
        self._awaited = threading.Event()
        self._made = threading.Event()
        self._ended = threading.Event()

    def through(self, messages: Iterable[VehicleMessage], duration_s: float) -> Iterator[VehicleMessage]:
        """The messages, for the drive's thread: it waits where a fault is due, also behind the last one."""
        remaining = [share for share, _ in self._steps]
        for message in messages:
            while remaining and message.offset_s >= remaining[0] * duration_s:
                self._wait()
                del remaining[0]
            yield message
        for _ in remaining:
            self._wait()

    def make_due(self) -> None:
        """Makes the fault that the drive waits for, if it waits: for the other thread."""
        if self._awaited.is_set():
            self._awaited.clear()
            self._steps.pop(0)[1]()
            self._made.set()

    def end(self) -> None:
        """Nobody makes faults any more: who waits for one goes on."""
        self._ended.set()

    def _wait(self) -> None:
        self._made.clear()
        self._awaited.set()
        while not self._made.wait(_ASKED_EVERY_S):
            if self._ended.is_set():
                return
