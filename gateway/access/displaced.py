"""Devices of which the last message in the registry's topic is not the one that holds: it is to be published again.

Compaction keeps the last message of a device. Two regions that disagree, about keys or by their clocks, each take the
other's for what must not come last: so each waits longer from time to time, and says that it goes on.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from typing import Final, NamedTuple

from waybill.identity.registry_messages import ARGUABLE, tenant_of

OUTRANKED: Final = "outranked"
"""The reason where an older message came last; else it is that for which the last one is refused."""
MISSING: Final = "missing"
"""The reason where the topic has lost every message of a device."""
MAX_REMEMBERED: Final = 100_000
"""Devices of which is known how often they were published again: of more, those of the latest time."""
FORGET_S: Final = 7200.0
_TIMES_LONGER: Final = 4.0
_MAX_STEPS: Final = 8


class _Pauses(NamedTuple):
    """How long one waits: the first time, the second time, and at most; in between four times as long each time."""

    first_s: float
    second_s: float
    longest_s: float

    def before(self, times: int) -> float:
        """The pause after so many publications."""
        steps = min(times - 1, _MAX_STEPS)
        return self.first_s if times == 0 else min(self.second_s * _TIMES_LONGER**steps, self.longest_s)


# Whoever reads the topic finds it older than ours: nobody can be of another opinion, so ours comes last soon.
_OF_OUTRANKED: Final = _Pauses(0, 1, 60)
# Nobody could take it, but where everything is taken (`unsigned = true`).
_OF_REFUSED: Final = _Pauses(0, 1, 3600)
# Another region may rightly take it: keys are being handed out, or a clock is wrong. Mostly it is taken here soon.
_OF_ARGUABLE: Final = _Pauses(60, 240, 3600)
_NAMED_AFTER: Final = 2
_HINT: Final = "compare the regions' registry.operators and clocks, and see who may write to the topic"


class _Due(NamedTuple):
    at_s: float
    reason: str


class _Sent(NamedTuple):
    at_s: float
    times: int
    reason: str


class Displaced:
    """Noted by who reads the topic, taken by who publishes; any thread may call.

    `is_read`: whether a tenant's topic is read to its end; before, nobody knows which message of a device is the last.
    """

    def __init__(self, is_read: Callable[[str], bool], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._is_read, self._monotonic = is_read, monotonic
        self._due: defaultdict[str, dict[str, _Due]] = defaultdict(dict)
        self._sent: OrderedDict[str, _Sent] = OrderedDict()
        self._lock = threading.Lock()
        self.published: Counter[str] = Counter()
        """How often one was published again, by the reason."""

    def __len__(self) -> int:
        return sum(map(len, self._due.copy().values()))

    def note(self, name: str, reason: str) -> None:
        """The last message of a device is not the one that holds."""
        now_s, pauses = self._monotonic(), _pauses(reason)
        with self._lock:
            self._forget(now_s)
            sent, due = self._sent.get(name), self._due[tenant_of(name)].get(name)
            at_s = now_s + pauses.first_s if sent is None else max(now_s, sent.at_s + pauses.before(sent.times))
            if due is None or at_s < due.at_s:
                self._due[tenant_of(name)][name] = _Due(at_s, reason)

    def settle(self, name: str, *, is_new: bool = False) -> None:
        """The last message of a device is the one that holds; `is_new`: since now: what was counts no more."""
        with self._lock:
            self._due[tenant_of(name)].pop(name, None)
            if is_new:
                self._sent.pop(name, None)

    def take_due(self, tenant: str, limit: int) -> list[str]:
        """A tenant's devices that are to be published again now, at most so many. `put_back` what is not sent."""
        waiting = self._due[tenant]
        if not waiting or not self._is_read(tenant):
            return []
        now_s, taken = self._monotonic(), list[str]()
        with self._lock:
            for name, due in waiting.items():
                if due.at_s <= now_s:
                    taken.append(name)
                if len(taken) == limit:
                    break
            for name in taken:
                reason, sent = waiting.pop(name).reason, self._sent.pop(name, None)
                self._sent[name] = _Sent(now_s, 1 if sent is None else sent.times + 1, reason)
                self.published[reason] += 1
            self._forget(now_s)
        return taken

    def put_back(self, names: list[str]) -> None:
        """These were not sent."""
        now_s = self._monotonic()
        with self._lock:
            for name in names:
                if (sent := self._sent.pop(name, None)) is not None:
                    self.published[sent.reason] -= 1
                    if sent.times > 1:
                        self._sent[name] = sent._replace(times=sent.times - 1)
                    self._due[tenant_of(name)].setdefault(name, _Due(now_s, sent.reason))

    def give_up(self, name: str) -> None:
        """Of this one there is nothing to be sent."""
        with self._lock:
            if (sent := self._sent.pop(name, None)) is not None:
                self.published[sent.reason] -= 1

    @property
    def problem(self) -> str:
        """Of which device another message comes last again and again, and why it does not hold; "" if of none."""
        with self._lock:
            self._forget(self._monotonic())
            named = [(name, sent) for name, sent in self._sent.items() if _is_named(sent)]
        if not named:
            return ""
        name, sent = named[-1]
        more = f", and of {len(named) - 1} more devices" if len(named) > 1 else ""
        return (
            f"registry: what holds of {name} was published again ({sent.times} times), because another message comes "
            f"last, which this region does not take ({sent.reason}){more}; {_HINT}"
        )

    def _forget(self, now_s: float) -> None:
        # In the order of the last publication.
        while self._sent:
            name, sent = next(iter(self._sent.items()))
            if len(self._sent) <= MAX_REMEMBERED and now_s - sent.at_s < FORGET_S:
                return
            del self._sent[name]


def _pauses(reason: str) -> _Pauses:
    if reason in {OUTRANKED, MISSING}:
        return _OF_OUTRANKED
    return _OF_ARGUABLE if reason in ARGUABLE else _OF_REFUSED


def _is_named(sent: _Sent) -> bool:
    # It is counted by who knows what is missing: no other message came.
    if sent.reason == MISSING:
        return False
    return sent.times >= (1 if sent.reason in ARGUABLE else _NAMED_AFTER)
