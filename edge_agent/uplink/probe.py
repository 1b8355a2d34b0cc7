"""Looking at another region without leaving this one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from edge_agent.errors import LinkError
from edge_agent.uplink.protocol import Uplink

POLL_S = 1.0


class Probe:
    """Connects in a thread of its own and holds the connection for a while. `held` is None until it is known."""

    def __init__(self, make: Callable[[], Uplink], hold_s: float) -> None:
        self._make = make
        self._hold_s = hold_s
        self._stopping = threading.Event()
        self.held: bool | None = None
        threading.Thread(target=self._run, name="probe", daemon=True).start()

    def stop(self) -> None:
        """Gives up soon."""
        self._stopping.set()

    def _run(self) -> None:
        uplink = self._make()
        try:
            uplink.open()
            until_s = time.monotonic() + self._hold_s
            while time.monotonic() < until_s and not self._stopping.is_set():
                uplink.poll(POLL_S)
            held = not self._stopping.is_set()
        except LinkError:
            held = False
        uplink.close()
        self.held = held
