"""Ctrl-C at a command: it says at once that it is ending, and ends though a connection does not close."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from waybill.daemon.signals import handle_signals

__all__ = ["says_interrupt"]


@contextmanager
def says_interrupt(command: str) -> Iterator[None]:
    """While inside, the first SIGINT is answered on stderr, and raises KeyboardInterrupt as each one does.

    Whoever handles the signal otherwise inside, or was started with it ignored, is left alone. After an interrupt the
    process does not wait for threads that hang in a connection: with them Python's own end would be a crash.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    is_interrupted = False

    def interrupt(_: int) -> NoReturn:
        nonlocal is_interrupted
        if not is_interrupted:
            is_interrupted = True
            # Not through `sys.stderr`, which the interrupted code may be in the midst of writing to.
            os.write(2, f"\n{command}: interrupted, ending: what is open is closed, which may take seconds\n".encode())
        raise KeyboardInterrupt

    before = frozenset(threading.enumerate())
    with handle_signals([signal.SIGINT], interrupt):
        try:
            yield
        except SystemExit as ended:
            if is_interrupted and any(one.daemon for one in threading.enumerate() if one not in before):
                _end_at_once(ended)
            raise


def _end_at_once(ended: SystemExit) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(ended.code if isinstance(ended.code, int) else 1)
