"""The one-time tokens that may log in now. As many as are open: what was used long ago costs nothing."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from waybill.identity.names import PrincipalKind, principal
from waybill.identity.registry import DeviceEntry, DeviceState

__all__ = ["REPEAT_WITHIN", "OpenTokens"]

REPEAT_WITHIN: Final = timedelta(minutes=10)
"""For so long a key gets its certificate again: an answer may be lost, and the device asks again."""
_KEPT: Final = timedelta(hours=1)
"""After its end a token is remembered, for a clock that is set back; one set back further is a start anew."""


class _Open(NamedTuple):
    user: str
    password_hash: str
    until: datetime | None


class OpenTokens:
    """Those of a region's devices. One thread takes entries, any may ask."""

    def __init__(self, region: str) -> None:
        self._region = region
        self._lock = threading.Lock()
        self._open: dict[str, _Open] = {}

    def __len__(self) -> int:
        return len(self._open)

    def take(self, entry: DeviceEntry, now: datetime) -> bool:
        """An entry that holds from now on; whether another token may log in, or one may not any more."""
        found = _open_of(entry, self._region)
        if found is not None and found.until is not None and found.until + _KEPT <= now:
            found = None
        with self._lock:
            former = self._open.pop(entry.name, None)
            if found is not None:
                self._open[entry.name] = found
        return found != former

    def passwords(self, now: datetime) -> dict[str, str]:
        """The hashes that the enrolment broker takes now, by user name; what ended long before is forgotten."""
        with self._lock:
            for name in [name for name, one in self._open.items() if one.until and one.until + _KEPT <= now]:
                del self._open[name]
            return {one.user: one.password_hash for one in self._open.values() if one.until is None or now < one.until}


def _open_of(entry: DeviceEntry, region: str) -> _Open | None:
    """The token of an entry, and until when it may log in; None: it may not.

    One that was used is taken for a while more: its device may ask for a lost answer again.
    """
    claim = entry.claim
    if claim is None or claim.password_hash is None or entry.region != region:
        return None
    user = principal(PrincipalKind.CLAIM, claim.id)
    if entry.state is DeviceState.EXPECTED:
        return _Open(user, claim.password_hash, claim.until)
    # With a second certificate it is renewed by its first one.
    if entry.state is DeviceState.ACTIVE and len(entry.certificates) == 1:
        return _Open(user, claim.password_hash, entry.changed_at + REPEAT_WITHIN)
    return None
