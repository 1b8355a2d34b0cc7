"""Waking the loop from another thread or from a signal, without locks."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Iterable, Iterator

from waybill.daemon.signals import handle_signals

__all__ = ["WakeUp"]


class WakeUp:
    """A socket pair: `wake` may be called from any thread and never blocks; `socket` becomes readable."""

    def __init__(self) -> None:
        self.socket, self._writer = socket.socketpair()
        self.socket.setblocking(False)
        self._writer.setblocking(False)
        self._is_set = False

    def wake(self) -> None:
        """Wake the loop; many calls before it wakes are one."""
        # Without a lock: where two threads come at once, the loop wakes once for nothing.
        if not self._is_set:
            self._is_set = True
            with contextlib.suppress(OSError):
                self._writer.send(b"\0")

    def clear(self) -> None:
        """Make ready for the next `wake`. To be called before looking at what it was for."""
        with contextlib.suppress(BlockingIOError):
            self.socket.recv(4096)
        # Last: who calls `wake` before this has handed over what the loop looks at after it.
        self._is_set = False

    @contextlib.contextmanager
    def on_signals(self, signals: Iterable[signal.Signals]) -> Iterator[set[int]]:
        """While inside, these signals wake the loop and are collected in the set. Only from the main thread."""
        seen: set[int] = set()
        with handle_signals(signals, seen.add):
            # The handler runs between two steps of the interpreter, and a loop that sleeps in `select` takes none.
            fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
            try:
                yield seen
            finally:
                signal.set_wakeup_fd(fd)

    def close(self) -> None:
        """Close both ends."""
        self.socket.close()
        self._writer.close()
