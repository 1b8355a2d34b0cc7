"""A daemon's tokens beside the clock: whoever renews them may have stopped, and nobody else would say so in time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from waybill.pulsar.pulsar_client import PulsarAccess

__all__ = ["TokenWatch", "token_faults", "tokens_ending"]

_LOOK_S: Final = 10.0


def token_faults(accesses: Mapping[str, PulsarAccess], now_s: float) -> list[str]:
    """Tokens that no cluster takes now, by the tables of the settings that name them; one line each."""
    return [f"{_key(table, one)}: {said}" for table, one in accesses.items() if (said := one.token_problem(now_s))]


def tokens_ending(accesses: Mapping[str, PulsarAccess], now_s: float) -> list[str]:
    """Tokens that end soon, likewise."""
    return [f"{_key(table, one)}: {said}" for table, one in accesses.items() if (said := one.token_ends_soon(now_s))]


def _key(table: str, access: PulsarAccess) -> str:
    return f"{table}.{'token_file' if access.token_file else 'token'}"


class TokenWatch:
    """Reads the tokens of a daemon again while it runs. `clock`: seconds since 1970."""

    def __init__(self, accesses: Iterable[PulsarAccess], clock: Callable[[], float] = time.time) -> None:
        # What two parts of a daemon share is said once.
        self._accesses, self._clock = tuple(dict.fromkeys(accesses)), clock
        self._look_at_s, self._ended, self._ending = -math.inf, "", ""

    @property
    def ended(self) -> str:
        """Which tokens no cluster takes now: role, file and end; "" while all are good."""
        self._look()
        return self._ended

    @property
    def ending(self) -> str:
        """Which tokens end soon, since nobody renewed them: role, file and end; "" while none does."""
        self._look()
        return self._ending

    def _look(self) -> None:
        now_s = self._clock()
        # Also when the clock was set back.
        if self._look_at_s <= now_s < self._look_at_s + _LOOK_S:
            return
        self._look_at_s = now_s
        self._ended = "; ".join(filter(None, (one.token_problem(now_s) for one in self._accesses)))
        self._ending = "; ".join(filter(None, (one.token_ends_soon(now_s) for one in self._accesses)))
