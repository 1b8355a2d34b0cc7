"""When the access daemon does what is to be done: how long changes settle, and when ended sessions are looked at again.

By a clock that nobody sets: what it is handed are seconds of a monotonic one. Pure, one thread.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, NamedTuple

__all__ = ["LOOK_FOR_S", "SessionLooks", "Settling"]

SETTLE_AT_MOST: Final = 5
"""Changes that keep coming are put together for so many times the settling time, and no longer."""
LOOK_FOR_S: Final = 240.0
"""At first soon, then each time after twice as long. Mosquitto closes a connection without a CONNECT after 90 s."""
MAX_LOOKS: Final = 10_000
_LOOKS_AT_ONCE: Final = 500
"""A tenth of a second: a revocation waits for no more of them."""


class Settling:
    """Changes that come soon after each other are one step. `settle_s`: how soon."""

    def __init__(self, settle_s: float) -> None:
        self._settle_s = settle_s
        self._first_s: float | None = None
        self._last_s = 0.0
        self._changes = 0

    def count(self, changes: int, now_s: float) -> None:
        """So many changes there were in all."""
        if changes != self._changes:
            self._changes, self._last_s = changes, now_s
            self._first_s = now_s if self._first_s is None else self._first_s

    def due_s(self) -> float | None:
        """When what changed has settled; None: nothing changed."""
        if self._first_s is None:
            return None
        # Bounded: a stream of changes must not put off the first of them for ever.
        return min(self._last_s + self._settle_s, self._first_s + SETTLE_AT_MOST * self._settle_s)

    def is_settled(self, now_s: float) -> bool:
        """Whether no change waits for others."""
        due_s = self.due_s()
        return due_s is None or now_s >= due_s

    def reset(self) -> None:
        """A step has all changes up to now."""
        self._first_s = None


class _Look(NamedTuple):
    at_s: float
    wait_s: float


class SessionLooks:
    """Devices whose sessions were ended, and are looked for again.

    Several times: a TLS connection that stood before the revocation may send its CONNECT long after it.
    """

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        self._looks: OrderedDict[str, _Look] = OrderedDict()

    def add(self, names: Iterable[str], now_s: float) -> None:
        """These sessions were ended; of more than there is room for, the first."""
        for name in names:
            if len(self._looks) >= MAX_LOOKS and name not in self._looks:
                return
            self._looks[name] = _Look(now_s + self._after_s, self._after_s)

    def due_s(self) -> float | None:
        """When the next look is due; None: none is."""
        return min((look.at_s for look in self._looks.values()), default=None)

    def take(self, now_s: float) -> list[str]:
        """Devices for which it is time."""
        due = [name for name, look in self._looks.items() if look.at_s <= now_s][:_LOOKS_AT_ONCE]
        for name in due:
            wait_s = 2 * self._looks.pop(name).wait_s
            if wait_s <= LOOK_FOR_S:
                self._looks[name] = _Look(now_s + wait_s, wait_s)
        return due
