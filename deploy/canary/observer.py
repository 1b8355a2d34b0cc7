"""An observer looks at one or more hops again and again, in a thread of its own that nothing else waits for."""

from __future__ import annotations

import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Final

import structlog

from deploy.canary.hops import Hop
from deploy.canary.watch import CanaryWatch
from waybill.daemon.backoff import Backoff

__all__ = ["Observer", "ObserverThread"]

_FIRST_S: Final = 0.5
_MAX_S: Final = 10.0
"""The longest wait before a hop is looked at again that could not be."""
_STOP_S: Final = 5.0
_LOG = structlog.get_logger("canary")


class Observer(ABC):
    """What looks at `hops`, every `every_s` seconds. A look that raises is tried again, later and later."""

    hops: Collection[Hop]
    every_s: float = 0.5

    @abstractmethod
    def look(self) -> None:
        """Writes what it sees to the ledger; bounded in time."""

    def close(self) -> None:  # noqa: B027 - most observers hold nothing
        """Lets go of what it holds."""


class ObserverThread:
    """Runs one observer until `stop` is set."""

    def __init__(self, observer: Observer, watch: CanaryWatch, stop: threading.Event) -> None:
        self._observer, self._watch, self._stop = observer, watch, stop
        name = "+".join(observer.hops)
        self._thread = threading.Thread(target=self._run, name=f"observer-{name}", daemon=True)

    def start(self) -> None:
        """Begins to look."""
        self._thread.start()

    def join(self) -> None:
        """Waits a while for its end; one that hangs ends with the process."""
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        backoff, hops = Backoff(_FIRST_S, _MAX_S, random.random), [hop.value for hop in self._observer.hops]
        while not self._stop.is_set():
            try:
                with self._watch.looking(self._observer.hops):
                    self._observer.look()
                backoff.reset()
                wait_s = self._observer.every_s
            except Exception as error:  # noqa: BLE001 - whatever it is: the hop is blind, and the others are looked at
                wait_s = backoff.take_delay_s()
                _LOG.warning("cannot look", hops=hops, error=str(error) or type(error).__name__)
            # not a sleep: a stop ends it at once
            self._stop.wait(wait_s)
        self._observer.close()
