"""Partitions that are asked for at once: one that does not answer holds up no other one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import suppress
from typing import Any, Final

__all__ = ["AskedPartitions"]

# more at once take a cluster no less time
AT_ONCE: Final = 12
WAIT_S: Final = 0.5
"""So long the answers of a group are awaited before the next one: whoever is to come first does."""


class AskedPartitions:
    """One thread asks; `subscribe`, which gives a partition's subscription or why there is none, runs in others."""

    def __init__(self, subscribe: Callable[[str], Any]) -> None:
        self._subscribe = subscribe
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="claims")
        self._asked: dict[Future[Any], str] = {}

    def answers(self, names: Iterable[str]) -> Iterator[tuple[str, Any]]:
        """Asks for some, none of which is asked for yet; what is answered by now, of these and of those before."""
        new = {self._pool.submit(self._subscribe, name): name for name in names}
        self._asked |= new
        with suppress(TimeoutError):
            for one in as_completed(new, WAIT_S):
                yield self._asked.pop(one), one.result()
        for one in [one for one in self._asked if one.done()]:
            yield self._asked.pop(one), one.result()

    def close(self) -> None:
        """Asks no more; an answer that is still to come is waited for by nobody."""
        self._pool.shutdown(wait=False, cancel_futures=True)
