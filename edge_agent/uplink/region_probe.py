"""Looking at another region without leaving this one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

from edge_agent.errors import LinkError
from edge_agent.uplink.protocol import Uplink

log = structlog.get_logger("edge_agent.drain")

POLL_S = 1.0


class RegionProbe:
    """Connects in a thread of its own and holds the connection for a while.

    `held` is None until it is known. Whatever goes wrong, also before there is a connection, is an answer: False.
    """

    def __init__(
        self, make: Callable[[], Uplink], hold_s: float, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._make = make
        self._hold_s = hold_s
        self._monotonic_s = monotonic_s
        self._stopping = threading.Event()
        self.held: bool | None = None
        threading.Thread(target=self._run, name="probe", daemon=True).start()

    def stop(self) -> None:
        """Gives up soon."""
        self._stopping.set()

    def _run(self) -> None:
        held = False
        try:
            held = self._holds()
        except LinkError as error:
            log.info("the preferred region is not back", error=str(error))
        except Exception as error:  # noqa: BLE001 - a thread that ends without an answer would end the looking, too
            log.error("the preferred region cannot be looked at", error=repr(error))
        finally:
            self.held = held

    def _holds(self) -> bool:
        uplink = self._make()
        try:
            uplink.open()
            until_s = self._monotonic_s() + self._hold_s
            while self._monotonic_s() < until_s and not self._stopping.is_set():
                uplink.poll(POLL_S)
            return not self._stopping.is_set()
        finally:
            uplink.close()
