"""Entries that are right but for their date, which is ahead of our clock: until when they wait to be read again.

Whose clock is wrong, theirs or ours, nobody knows here. So nothing of lower rank is to be put in their place on the
topic meanwhile, and when our clock has come so far the topic is read again.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, NamedTuple

from waybill.identity.precedence import Precedence

__all__ = ["AheadEntries"]

MAX_OF_TENANT: Final = 10_000
"""Devices of one tenant; while there are more, every device of that tenant is taken for one of them ..."""
MAX_REMEMBERED: Final = 100_000
"""... and of all tenants: beyond that the tenant that has most is taken as a whole."""
MAX_WHOLE: Final = 10_000
"""Tenants taken as a whole; beyond that every device is. Only who signs for all tenants brings this about."""
PAUSE_S: Final = 60.0
"""The topic is not read again more often: one that is always ahead keeps nobody from reading to the end."""


class _Noted(NamedTuple):
    rank: Precedence
    due_ms: float
    dated_ms: float


class AheadEntries:
    """By tenant and device. One thread notes and settles, any may ask. Moments are ms since 1970, by our clock."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._noted: dict[str, dict[str, _Noted]] = {}
        self._count = 0
        self._whole: dict[str, float] = {}
        self._all_due_ms = self._earliest_ms = math.inf
        self._next_s = -math.inf
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._count

    def note(self, name: str, rank: Precedence, dated_ms: float, due_ms: float) -> None:
        """An entry of a device is dated ahead, and is not from `due_ms` on."""
        with self._lock:
            self._earliest_ms = min(self._earliest_ms, due_ms)
            tenant = _tenant(name)
            former = self._noted.get(tenant, {}).get(name)
            if former is None:
                self._make_room(tenant)
            if tenant in self._whole or math.isfinite(self._all_due_ms):
                self._take_whole(tenant, due_ms)
            elif former is not None:
                self._noted[tenant][name] = _Noted(max(rank, former.rank), min(due_ms, former.due_ms), dated_ms)
            else:
                self._noted.setdefault(tenant, {})[name] = _Noted(rank, due_ms, dated_ms)
                self._count += 1

    def settle(self, name: str, rank: Precedence) -> None:
        """An entry of this rank holds of a device: what ranks no higher waits no more."""
        tenant = _tenant(name)
        with self._lock:
            of_tenant = self._noted.get(tenant, {})
            if (noted := of_tenant.get(name)) is not None and noted.rank <= rank:
                del of_tenant[name]
                self._count -= 1
                if not of_tenant:
                    del self._noted[tenant]

    def outranks(self, name: str, rank: Precedence) -> bool:
        """Whether an entry waits, or may wait, that would hold against one of this rank."""
        tenant = _tenant(name)
        with self._lock:
            noted = self._noted.get(tenant, {}).get(name)
            if noted is not None:
                return noted.rank > rank
            return tenant in self._whole or math.isfinite(self._all_due_ms)

    def _make_room(self, tenant: str) -> None:
        if len(self._noted.get(tenant, ())) >= MAX_OF_TENANT:
            self._take_whole(tenant)
        elif self._count >= MAX_REMEMBERED:
            self._take_whole(max(self._noted, key=lambda one: len(self._noted[one])))

    def _take_whole(self, tenant: str, due_ms: float = math.inf) -> None:
        """From here on every device of a tenant may have an entry that waits, until the earliest that does is due."""
        names = self._noted.pop(tenant, {})
        self._count -= len(names)
        due_ms = min([due_ms, *(noted.due_ms for noted in names.values())])
        if tenant in self._whole or len(self._whole) < MAX_WHOLE:
            self._whole[tenant] = min(due_ms, self._whole.get(tenant, math.inf))
        else:
            self._all_due_ms = min(self._all_due_ms, due_ms)

    def take_due(self, now_ms: float) -> bool:
        """Whether the topic is to be read again now; what does not come again then is named for as long as we run."""
        now_s = self._monotonic()
        with self._lock:
            if now_ms < self._earliest_ms or now_s < self._next_s:
                return False
            is_due = self._all_due_ms <= now_ms
            if is_due:
                self._all_due_ms = math.inf
            for tenant in [tenant for tenant, due_ms in self._whole.items() if due_ms <= now_ms]:
                del self._whole[tenant]
                is_due = True
            for of_tenant in self._noted.values():
                for name, noted in of_tenant.items():
                    if noted.due_ms <= now_ms:
                        of_tenant[name], is_due = noted._replace(due_ms=math.inf), True
            dues = (noted.due_ms for of_tenant in self._noted.values() for noted in of_tenant.values())
            self._earliest_ms = min([self._all_due_ms, *self._whole.values(), *dues])
            if is_due:
                self._next_s = now_s + PAUSE_S
            return is_due

    @property
    def problem(self) -> str:
        """How many devices have one, and of which date; "" if none has."""
        with self._lock:
            if not (self._count or self._whole or math.isfinite(self._all_due_ms)):
                return ""
            first = next((one for of_tenant in self._noted.values() for one in of_tenant.items()), None)
            found = [f"of {self._count} devices"] if self._count else []
            if self._whole:
                others = f" and {len(self._whole) - 1} more" if len(self._whole) > 1 else ""
                found.append(f"of so many devices of tenant {next(iter(self._whole))}{others} that all of them count")
            if math.isfinite(self._all_due_ms):
                found.append("of so many tenants that all of them count")
        example = f" ({first[0]}: {_text(first[1].dated_ms)})" if first else ""
        return (
            f"entries {', and '.join(found)} are dated ahead of this machine's clock, and wait until it has come so "
            f"far{example}; compare this machine's clock with the cluster's"
        )


def _tenant(name: str) -> str:
    return name.partition("/")[0]


def _text(moment_ms: float) -> str:
    try:
        return f"{datetime.fromtimestamp(moment_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return "a moment that no calendar has"
