"""What other threads hand to the drain's thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from edge_agent.clock.jumps import ClockJump
from edge_agent.clock.statement import HeadStatement
from edge_agent.store.batch_rows import StoredBatch

MAX_NEW_BATCHES = 256
"""Committed batches that may wait for the drain; beyond it they are found on disk."""
MAX_REPORTS = 8


class DrainInbox:
    """Any thread may put something in; it wakes the drain. `last_id`: the highest id that a batch can have now."""

    def __init__(self, last_id: Callable[[], int]) -> None:
        self._last_id = last_id
        self._lock = threading.Lock()
        self._batches: deque[StoredBatch] = deque(maxlen=MAX_NEW_BATCHES)
        self._missed = False
        self._wakeup = threading.Event()
        self._wake_uplink: Callable[[], None] | None = None
        self.jumps: deque[tuple[ClockJump, int]] = deque()
        """Jumps of the clock, each with the last batch that was stored before it."""
        self.reports: deque[bytes] = deque(maxlen=MAX_REPORTS)
        self.certificate_requests: deque[bytes] = deque(maxlen=1)
        """The last one alone: an earlier one was given up."""
        self._connects_now = threading.Event()
        self.is_stopping = False
        self.statement: HeadStatement | None = None
        """What the intake knows of the head; None: nothing."""

    def on_statement(self, statement: HeadStatement | None) -> None:
        """What may be stated from now on. The drain finds it when it sends; it need not wake up for it."""
        self.statement = statement

    def on_committed(self, batches: Sequence[StoredBatch]) -> None:
        """Hands over new batches."""
        with self._lock:
            self._missed = self._missed or len(self._batches) + len(batches) > MAX_NEW_BATCHES
            self._batches.extend(batches)
        self._wake()

    def on_missed(self) -> None:
        """There are batches on the disk that `on_committed` did not hand over."""
        self._missed = True
        self._wake()

    def on_jump(self, jump: ClockJump) -> None:
        """The clock jumped: what was never sent is corrected first."""
        with self._lock:
            # The bound is taken here: what is stored later was corrected in memory, and must not move twice.
            self.jumps.append((jump, self._last_id()))
        self._wake()

    def report(self, text: bytes) -> None:
        """Publishes what became of pushed settings, as soon as there is a connection."""
        self.reports.append(text)
        self._wake()

    def ask_certificate(self, request: bytes) -> None:
        """Asks the region for a certificate, as soon as there is a connection."""
        self.certificate_requests.append(request)
        self._wake()

    def connect_now(self) -> None:
        """Ends the wait before the next attempt to connect: what it failed for may be gone."""
        self._connects_now.set()
        self._wake()

    def take_connect_now(self) -> bool:
        """Whether `connect_now` was called since this was asked for."""
        is_wanted = self._connects_now.is_set()
        self._connects_now.clear()
        return is_wanted

    def stop(self) -> None:
        """The drain ends soon; nothing is lost by it."""
        self.is_stopping = True
        self._wake()

    def take_batches(self) -> tuple[list[StoredBatch], bool]:
        """The new batches, and whether others were missed."""
        with self._lock:
            batches, missed = list(self._batches), self._missed
            self._batches.clear()
            self._missed = False
        return batches, missed

    def set_uplink(self, wake: Callable[[], None] | None) -> None:
        """From now on the drain waits in an uplink that `wake` wakes; None: in `wait`."""
        self._wake_uplink = wake

    def take_wakeup(self) -> bool:
        """Whether something was put in since this was asked for."""
        if not self._wakeup.is_set():
            return False
        self._wakeup.clear()
        return True

    def wait(self, wait: Callable[[threading.Event, float], object], timeout_s: float) -> None:
        """Waits until something is put in, at most so long."""
        wait(self._wakeup, timeout_s)
        self._wakeup.clear()

    def _wake(self) -> None:
        # First: a drain between two polls finds it in `take_wakeup`.
        self._wakeup.set()
        wake = self._wake_uplink
        if wake is not None:
            # The drain may be closing this connection; then it waits for `_wakeup` next.
            with suppress(OSError):
                wake()
