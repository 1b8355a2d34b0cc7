"""Signal handlers that restore the former handler afterwards. Main thread only.

The agent blocks its signals and waits for them instead: no handler may run in the middle of a commit.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

# Waking the loop from another thread or a signal, without locks.


class WakeUp:
    """A socket pair that wakes a loop: `wake` may be called from any thread and never blocks; `socket` becomes
    readable.
    """

    def __init__(self) -> None:
        self.socket, self._writer = socket.socketpair()
        self.socket.setblocking(False)
        self._writer.setblocking(False)
        self._is_set = False

    def wake(self) -> None:
        # Without a lock: where two threads come at once, the loop wakes once for nothing.
        if not self._is_set:
            self._is_set = True
            with contextlib.suppress(OSError):
                self._writer.send(b"\0")

    def clear(self) -> None:
        """Get ready for the next `wake`. To be called before the loop looks for work."""
        with contextlib.suppress(BlockingIOError):
            self.socket.recv(4096)
        # Last: who calls `wake` before this has handed over what the loop looks at after it.
        self._is_set = False

    @contextlib.contextmanager
    def on_signals(self, signals: Iterable[signal.Signals]) -> Iterator[set[int]]:
        """These signals wake the loop and are collected in the set. Main thread only."""
        seen: set[int] = set()
        with handle_signals(signals, seen.add):
            # The handler runs between two steps of the interpreter, and a loop that sleeps in `select` takes none.
            fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
            try:
                yield seen
            finally:
                signal.set_wakeup_fd(fd)

    def close(self) -> None:
        self.socket.close()
        self._writer.close()


@contextmanager
def handle_signals(signals: Iterable[signal.Signals], handler: Callable[[int], object]) -> Iterator[None]:
    former = {number: signal.signal(number, lambda number, _: handler(number)) for number in signals}
    try:
        yield
    finally:
        for number, before in former.items():
            # None: not Python's handler, and Python cannot set it again.
            signal.signal(number, signal.SIG_DFL if before is None else before)


@contextmanager
def stop_on_signals(stop: threading.Event | None = None) -> Iterator[threading.Event]:
    """An event (a new one if none is given) that SIGTERM and SIGINT set."""
    event = stop or threading.Event()
    with handle_signals((signal.SIGTERM, signal.SIGINT), lambda _: event.set()):
        yield event


@contextmanager
def raise_on_signals(signals: Iterable[signal.Signals], error: BaseException) -> Iterator[None]:
    """The first of these signals raises `error`; later ones are ignored.

    Their default action would end the process before a `finally` could stop the servers that it started.
    """
    is_raised = False

    def end(_: int) -> None:
        nonlocal is_raised
        # Once: a second signal while everything is being stopped must not stop the stopping.
        if not is_raised:
            is_raised = True
            raise error

    with handle_signals(signals, end):
        yield
