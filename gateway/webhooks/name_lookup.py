"""For which addresses a name stands, asked within a time: the system's own call waits for as long as it likes.

A call that does not come back cannot be ended. It keeps a thread, but one for each name only: whoever asks meanwhile
waits for the same answer, no longer than for its own time.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

from gateway.webhooks.reachable import is_address

__all__ = ["NameLookup", "addresses_of"]

Addresses = list[tuple[Any, ...]]
"""What `socket.getaddrinfo` gives."""


class NameLookup:
    """`resolve` is called with a host and a port, in a thread of its own."""

    def __init__(self, resolve: Callable[[str, int], Addresses]) -> None:
        self._resolve = resolve
        self._lock = threading.Lock()
        self._running: dict[tuple[str, int], Future[Addresses]] = {}

    def __call__(self, host: str, port: int, timeout_s: float) -> Addresses:
        """The addresses. Raises OSError: TimeoutError after `timeout_s`, else as the name's servers say."""
        if is_address(host):
            return self._resolve(host, port)
        return self._asked(host, port).result(timeout_s)

    def _asked(self, host: str, port: int) -> Future[Addresses]:
        with self._lock:
            if (running := self._running.get((host, port))) is not None:
                return running
            made = self._running[host, port] = Future[Addresses]()
        # not one of a pool: a process that ends does not wait for it
        asking = threading.Thread(target=self._ask, args=(host, port, made), name=f"looks up {host}", daemon=True)
        try:
            asking.start()
        except RuntimeError as error:
            self._forget(host, port)
            # who waits for the same answer hears of it, too
            made.set_exception(OSError(f"no thread to look up {host}: {error}"))
        return made

    def _ask(self, host: str, port: int, answer: Future[Addresses]) -> None:
        try:
            found = self._resolve(host, port)
        except Exception as error:  # noqa: BLE001 - whoever asked hears of it
            self._forget(host, port)
            answer.set_exception(error)
        else:
            self._forget(host, port)
            answer.set_result(found)

    def _forget(self, host: str, port: int) -> None:
        # what a name stands for changes: whoever comes later asks anew
        with self._lock:
            del self._running[host, port]


def _resolved(host: str, port: int) -> Addresses:
    return [*socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


addresses_of: Final = NameLookup(_resolved)
"""By the resolver of this machine."""
