"""Compares this machine's clock with the cluster's, because the access daemon dates what it signs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import structlog

from waybill.pulsar.cluster_clock import MAX_CLOCK_DIFFERENCE_S, ClockDiffers, ClockUnknown, check_clock
from waybill.pulsar.pulsar_client import PulsarAccess

LOOK_S: Final = 60.0
AGAIN_S: Final = 5.0
"""While the clock is wrong or not known."""
# A hanging answer is of no use.
_CLOSE_S: Final = 1.0
_LOG = structlog.get_logger("access")


class ClockWatch:
    """Compares in a thread. Without a `url` there is nothing to compare with, and the clock counts as good.

    An unknown clock is a problem but blocks nothing, so devices are locked out while the address is unreachable.
    """

    def __init__(
        self, url: str | None, access: PulsarAccess, compare: Callable[[str, PulsarAccess], None] = check_clock
    ) -> None:
        self._url, self._access, self._compare = url, access, compare
        self._was_asked = self._is_off = False
        self._problem = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="compares clocks", daemon=True)

    @property
    def is_good(self) -> bool:
        """Whether the clock was compared and is not known to be wrong."""
        return self._url is None or (self._was_asked and not self._is_off)

    @property
    def problem(self) -> str:
        """That the clock is wrong or not known; "" if it is right."""
        if self._url is not None and not self._was_asked:
            return f"this machine's clock is not compared with that of {self._url} yet"
        return self._problem

    @property
    def is_running(self) -> bool:
        return self._url is None or self._thread.is_alive()

    def start(self) -> None:
        if self._url is not None:
            self._thread.start()

    def close(self) -> None:
        """Stop. A request that is under way is left to the end of the process."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_S)

    def look(self) -> None:
        assert self._url is not None, "there is a clock to compare with"
        try:
            self._compare(self._url, self._access)
        except ClockDiffers as error:
            self._is_off = True
            where = "ahead of" if error.ahead_s > 0 else "behind"
            self._say(
                f"this machine's clock is {abs(error.ahead_s):.0f} s {where} that of {self._url}: set it right, to "
                f"{MAX_CLOCK_DIFFERENCE_S:.0f} s. Until then no certificate is signed, and a daemon that starts "
                "changes nothing at its broker"
            )
        except ClockUnknown as error:
            # A wrong clock stays wrong until it is known to be right.
            if not self._is_off:
                self._say(str(error))
        else:
            self._is_off = False
            self._say("")
        self._was_asked = True

    def _say(self, problem: str) -> None:
        if problem and not self._problem:
            _LOG.error("clock", problem=problem)
        self._problem = problem

    def _run(self) -> None:
        pause_s = 0.0
        while not self._stop.wait(pause_s):
            self.look()
            pause_s = AGAIN_S if self._problem else LOOK_S
