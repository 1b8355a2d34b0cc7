"""When each device was last heard, as far as this gateway knows."""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import NamedTuple

from gateway.validation import Sender

MAX_LISTED = 1000
"""So many silent devices are listed, those that are silent longest first."""


class SilentDevice(NamedTuple):
    """A device that was heard once, and not for `silent_s` of the time in which the gateway listened."""

    tenant: str
    device: str
    silent_s: float


class ListeningClock:
    """How long a gateway has listened in all. Silence is measured by it: while nobody listens, nobody is silent."""

    def __init__(self) -> None:
        self.total_s = 0.0
        self._listened_at_s: float | None = None

    def update(self, now_s: float, *, listens: bool) -> None:
        """The gateway listens now, or does not; it counts while it did the last time, too."""
        if listens and self._listened_at_s is not None:
            self.total_s += now_s - self._listened_at_s
        self._listened_at_s = now_s if listens else None


class DevicesHeard:
    """The devices that sent something here, in the order in which they were last heard. Times are a ListeningClock's.

    At most `limit`: then the one that is silent longest is forgotten, and `forgotten` says that the list is not whole.
    Forgetting changes nothing else: no acknowledgement depends on it.
    """

    def __init__(self, limit: int) -> None:
        self.forgotten = 0
        self._limit = limit
        self._heard_s: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._heard_s)

    def on_heard(self, device: Sender, now_s: float) -> None:
        """This device sent something."""
        name = f"{device.tenant}/{device.device}"
        self._heard_s[name] = now_s
        self._heard_s.move_to_end(name)
        if len(self._heard_s) > self._limit:
            self._heard_s.popitem(last=False)
            self.forgotten += 1

    def list_silent(self, now_s: float, after_s: float) -> tuple[int, tuple[SilentDevice, ...]]:
        """How many are silent for `after_s` and more, and at most MAX_LISTED of them."""
        count = 0
        # In the order in which they were heard: behind the first that is not silent nobody is.
        for heard_s in self._heard_s.values():
            if now_s - heard_s < after_s:
                break
            count += 1
        listed = islice(self._heard_s.items(), min(count, MAX_LISTED))
        return count, tuple(_silent(name, now_s - heard_s) for name, heard_s in listed)


def _silent(name: str, silent_s: float) -> SilentDevice:
    tenant, _, device = name.partition("/")
    return SilentDevice(tenant, device, round(silent_s, 1))
