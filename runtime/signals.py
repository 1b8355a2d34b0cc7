"""Handling signals, and giving them back: whoever handled one before handles it again afterwards. Main thread only.

The agent alone blocks its signals and waits for them instead: no handler may run in the middle of a commit.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["handle_signals", "raise_on_signals", "stop_on_signals"]


@contextmanager
def handle_signals(signals: Iterable[signal.Signals], handler: Callable[[int], object]) -> Iterator[None]:
    """While inside, `handler` is called with the number of each of these signals that comes."""

    def call(number: int, _: FrameType | None) -> None:
        handler(number)

    former = {number: signal.signal(number, call) for number in signals}
    try:
        yield
    finally:
        for number, before in former.items():
            # None: not Python's handler, and Python cannot set it again.
            signal.signal(number, signal.SIG_DFL if before is None else before)


@contextmanager
def stop_on_signals(stop: threading.Event | None = None) -> Iterator[threading.Event]:
    """An event, a new one if none is given, that SIGTERM and SIGINT set while inside."""
    event = stop or threading.Event()
    with handle_signals((signal.SIGTERM, signal.SIGINT), lambda _: event.set()):
        yield event


@contextmanager
def raise_on_signals(signals: Iterable[signal.Signals], error: BaseException) -> Iterator[None]:
    """While inside, the first of these signals raises `error`, and those after it do nothing.

    Their default action ends the process at once, and no `finally` would stop the servers that it started in order.
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
