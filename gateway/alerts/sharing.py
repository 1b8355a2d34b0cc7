"""Which partitions a process tries to get, and when, so that several share them. Pure.

A partition's subscription is exclusive, so whoever tries gets it or hears that it is taken. All processes are alike;
one that holds more than another waits a moment, so that the other comes first. They are tried in groups, of which
there are as many however many partitions there are: so it takes no longer to go through more of them.
"""

from __future__ import annotations

import hashlib
import heapq
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from waybill.pulsar.pulsar_positions import EntryPosition
from waybill.record import InvalidJson, parse_json

# Assignment of partitions and standbys to a region's alert processes. Pure.

PRESENT_S: Final = 3.5
"""A process that has said nothing for so long is not there."""
REST_S: Final = PRESENT_S + 0.5
"""After we took or gave a partition none is given for so long: what is heard until then may be of before."""
# whoever may write to the topic could name any number
MAX_PROCESSES: Final = 1000
# as many partitions as a process can have, with the longest names
_MAX_BYTES: Final = 200_000
MAX_INSTANCE: Final = 200
"""Characters of a process's name and what distinguishes its start."""
GIVE_WAIT_S: Final = 120.0
"""So long one to be given away waits for a process that is ready for it."""


class PresenceMessage(BaseModel):
    """What a process says of itself. `instance`: what distinguishes this start of it from every other.

    `held`: how many partitions it holds. `tenants`: whose batches it reads.
    `acknowledged`: of each partition the entry before which everything is acknowledged; None: it is not known.
    `ready`: those that others hold and for which it could go on; None: it stands by for none.
    """

    model_config = ConfigDict(frozen=True)

    instance: str = Field(max_length=MAX_INSTANCE)
    # a process that holds less than nothing would be given every partition
    held: int = Field(ge=0)
    tenants: frozenset[str]
    acknowledged: dict[str, EntryPosition | None] = {}
    ready: frozenset[str] | None = None

    def reads(self, partition: str) -> bool:
        """Whether a partition may be given to it."""
        return _tenant_of(partition) in self.tenants


class Presence:
    """Who is there besides us. `instance`: ours. `tenants`: whose batches we read: who reads none of theirs is passed
    over. One thread notes what is heard, others ask."""

    def __init__(self, instance: str, tenants: Iterable[str]) -> None:
        self.instance, self._tenants = instance, frozenset(tenants)
        self._heard: dict[str, tuple[float, PresenceMessage]] = {}
        self._rests_until_s = 0.0
        self._gives_since_s: float | None = None

    def on_changed(self, now_s: float) -> None:
        """We took a partition, or gave one."""
        self._rests_until_s = now_s + REST_S
        self._gives_since_s = None

    def note(self, said: PresenceMessage, now_s: float) -> None:
        """A process said this of itself."""
        # whoever ended is not held any more; anew each time, as threads of standbys look at it
        heard = {name: one for name, one in self._heard.items() if now_s - one[0] < PRESENT_S}
        is_other = said.instance != self.instance and bool(said.tenants & self._tenants)
        if is_other and (said.instance in heard or len(heard) < MAX_PROCESSES):
            heard[said.instance] = now_s, said
        self._heard = heard

    def others(self, now_s: float) -> list[int]:
        """How many partitions each of the others holds that is there."""
        return [said.held for said in self._present(now_s)]

    def comes_first(self, held: int, now_s: float, partition: str) -> bool:
        """Whether nobody who reads it holds fewer than we do: where the partition is free, it is ours to take."""
        return held <= min((said.held for said in self._present(now_s) if said.reads(partition)), default=held)

    def to_give(self, names: Sequence[str], held: int, now_s: float) -> str | None:
        """Which of these partitions of ours another process should have; None: none, or none yet."""
        poorer = [said for said in self._present(now_s) if held >= said.held + 2]
        # one that another may not read would be left to nobody
        names = [name for name in names if any(said.reads(name) for said in poorer)]
        if now_s < self._rests_until_s or not names:
            self._gives_since_s = None
            return None
        for name in reversed(names):
            if any(said.ready is not None and name in said.ready for said in poorer):
                return name
        self._gives_since_s = now_s if self._gives_since_s is None else self._gives_since_s
        waits = any(said.ready is not None for said in poorer) and now_s < self._gives_since_s + GIVE_WAIT_S
        return None if waits else names[-1]

    def acknowledged(self, name: str, now_s: float) -> EntryPosition | None:
        """Before which entry the owner of a partition has acknowledged everything; None: it is not known."""
        said = (one.acknowledged.get(name) for one in self._present(now_s))
        return max((position for position in said if position is not None), default=None)

    def is_standby(self, name: str, held: int, now_s: float) -> bool:
        """Whether we, who hold so many, are the one to stand by for a partition that another process holds.

        One for each partition, and of those that hold fewest, which are given some: all come to the same by what they
        hear.
        """
        if not self.is_held_elsewhere(name, now_s):
            return False
        others = (said for said in self._present(now_s) if said.ready is not None and said.reads(name))
        rivals = (said for said in others if name not in said.acknowledged)
        mine = held, _rank(self.instance, name)
        return all(mine < (said.held, _rank(said.instance, name)) for said in rivals)

    def is_held_elsewhere(self, name: str, now_s: float) -> bool:
        """Whether the owner of a partition is heard, and not us."""
        return any(name in said.acknowledged for said in self._present(now_s))

    def held_with(self, name: str) -> frozenset[str]:
        """The partitions of whoever said last that it holds one, also when it says nothing any more."""
        return frozenset(
            one for _, said in self._heard.values() if name in said.acknowledged for one in said.acknowledged
        )

    def held_by_others(self, now_s: float) -> list[frozenset[str]]:
        """The partitions that each of the others that are there says to hold."""
        return [frozenset(said.acknowledged) for said in self._present(now_s)]

    def is_ready_elsewhere(self, name: str, now_s: float) -> bool:
        """Whether another process is ready to go on with a partition."""
        return any(said.ready is not None and name in said.ready for said in self._present(now_s))

    def _present(self, now_s: float) -> list[PresenceMessage]:
        # whoever was killed says nothing more, and must not be waited for
        return [said for heard_s, said in self._heard.values() if now_s - heard_s < PRESENT_S]


def _tenant_of(partition: str) -> str:
    return partition.removeprefix("persistent://").partition("/")[0]


def _rank(instance: str, partition: str) -> bytes:
    return hashlib.blake2b(f"{instance} {partition}".encode(), digest_size=8).digest()


def decode_presence(data: bytes) -> PresenceMessage | None:
    """What a process said of itself; None for what is no such message."""
    try:
        parse_json(data, max_bytes=_MAX_BYTES)
        return PresenceMessage.model_validate_json(data)
    except (InvalidJson, ValidationError):
        return None


GROUPS: Final = 12
"""So many groups there are at most, each tried at once."""
RETRY_S: Final = 1.0
"""How often a partition that somebody else has is tried, ..."""
MAX_TRIES: Final = 32
"""... as long as that are no more than so many a second: each costs the cluster an answer. Beyond that one of each
process is tried so often, and what nobody says to hold."""
SPREAD: Final = 8
"""One that was another's and is free makes so many others of the same process be tried now: it may have ended."""
STEP_S: Final = 0.1
"""Between two groups that are taken; ..."""
YIELD_STEP_S: Final = 0.5
"""... while another process holds fewer, so much: it comes first."""
YIELD_S: Final = 1.5
"""So much less often such a process tries what somebody else has."""
LEAVE_S: Final = 3.0
"""One that is free is left for so long to a process that has its state: it tries each second."""
GIVEN_S: Final = 4.0
"""One that was given back is not tried again for so long."""
_VARIES: Final = 0.3


class ClaimState(StrEnum):
    """What a process knows of a partition."""

    UNKNOWN = "unknown"
    """It was not tried yet, or could not be."""
    HELD = "held"
    """It is ours."""
    TAKEN = "taken"
    """When it was tried last, another process had it."""


@dataclass(slots=True)
class _Claim:
    state: ClaimState
    next_s: float
    is_asked: bool = False


class Claims:
    """The partitions of a process, and when each is tried next. `draw`: a number from 0 to 1, for the order."""

    def __init__(self, draw: Callable[[], float]) -> None:
        self._draw = draw
        self._claims: dict[str, _Claim] = {}
        self._left_s: dict[str, float] = {}
        self._resumes_s = self._probes_s = 0.0

    def add(self, partitions: Iterable[str], now_s: float) -> None:
        """These partitions there are; known ones stay as they are."""
        for name in partitions:
            # two that start at once do not go through them in one order
            self._claims.setdefault(name, _Claim(ClaimState.UNKNOWN, now_s + self._draw() * RETRY_S / 4))

    @property
    def at_once(self) -> int:
        """How many are tried at once, at most."""
        return max(math.ceil(len(self._claims) / GROUPS), 1)

    def due(self, now_s: float) -> list[str]:
        """The partitions to try now, all at once; none: none yet."""
        if now_s < self._resumes_s:
            return []
        # those that have waited longest: one that fails again and again keeps no other one waiting
        free = ((name, one) for name, one in self._claims.items() if one.state != ClaimState.HELD)
        waiting = ((one.next_s, name) for name, one in free if not one.is_asked)
        due = [(next_s, name) for next_s, name in waiting if next_s <= now_s]
        return [name for _, name in heapq.nsmallest(self.at_once, due)]

    def on_asked(self, names: Iterable[str]) -> None:
        """These are being tried: none is due before its answer, however long that takes."""
        for name in names:
            self._claims[name].is_asked = True

    def probe(
        self,
        held: Sequence[Collection[str]],
        ready: Collection[str],
        now_s: float,
        yields: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """Once in `RETRY_S`: what each of the others says to hold. One of each is tried now, as it may have ended, and
        what none of them says to hold. `ready`: those that we could go on with, of these rather; there it yields to
        nobody."""
        if now_s < self._probes_s:
            return
        self._probes_s = now_s + RETRY_S
        free = self._claims.keys() - set[str]().union(*held)
        for names, most in ((free, self.at_once), *((of_one, 1) for of_one in held)):
            ours = [name for name in names if name in ready]
            self.hasten(ours or names, now_s, most, yields=not ours and any(map(yields, islice(names, 1))))

    def hasten(self, names: Iterable[str], now_s: float, most: int = SPREAD, *, yields: bool = False) -> None:
        """Of these, which a process has that gave one up or ended, some are tried now. `yields`: as for `on_taken`."""
        soon_s = now_s + (YIELD_S if yields else 0.0)
        found = [(one, name) for name in names if (one := self._claims.get(name)) is not None]
        later = [(one.next_s, name) for one, name in found if one.state == ClaimState.TAKEN and one.next_s > soon_s]
        for _, name in heapq.nsmallest(most, later):
            self._claims[name] = _Claim(ClaimState.TAKEN, soon_s)

    def on_held(self, name: str, now_s: float, *, yields: bool = False, is_ours: bool = False) -> None:
        """We got it. `yields`: there is a process that holds fewer than we do now. `is_ours`: we are ready for it, so
        nobody else is to come first."""
        self._left_s.pop(name, None)
        self._claims[name] = _Claim(ClaimState.HELD, now_s)
        if not is_ours:
            self._resumes_s = now_s + (YIELD_STEP_S if yields else STEP_S)

    def on_taken(self, name: str, now_s: float, *, yields: bool = False) -> None:
        """Another process has it. `yields`: there is one that holds fewer than we do."""
        self._left_s.pop(name, None)
        # never all in one moment, and none for long: in between somebody may have ended
        retry_s = max(RETRY_S, len(self._claims) / MAX_TRIES) * (1 - _VARIES * self._draw())
        self._claims[name] = _Claim(ClaimState.TAKEN, now_s + retry_s + (YIELD_S if yields else 0.0))

    def on_given(self, name: str, now_s: float) -> None:
        """We gave it to whoever holds fewer: if nobody takes it, it is ours again."""
        self._claims[name] = _Claim(ClaimState.UNKNOWN, now_s + GIVEN_S)

    def may_leave(self, name: str, now_s: float) -> bool:
        """Whether one that is free may still be left to another process."""
        return now_s - self._left_s.get(name, now_s) < LEAVE_S

    def on_left(self, name: str, now_s: float) -> None:
        """It was free, and is left to a process that is ready for it."""
        self._left_s.setdefault(name, now_s)
        self._claims[name] = _Claim(ClaimState.UNKNOWN, now_s + RETRY_S)

    def on_failed(self, name: str, now_s: float, wait_s: float = RETRY_S) -> None:
        """It could not be tried, or was lost."""
        self._claims[name] = _Claim(ClaimState.UNKNOWN, now_s + wait_s)

    def of_state(self, state: ClaimState) -> list[str]:
        """The partitions in a state, sorted."""
        return sorted(name for name, one in self._claims.items() if one.state == state)
