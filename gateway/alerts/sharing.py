"""Which partitions a process takes and gives, and for which it stands by. Pure.

The exclusive subscription of a partition decides who owns it. The processes tell each other once a second what they
hold, and from that all of them compute the same owner for each free partition.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from waybill.pulsar.pulsar_positions import EntryPosition
from waybill.record import InvalidJson, parse_json

# Presence of the processes, and what follows from it.

PRESENT_S: Final = 2.5
"""A process without a message for so long counts as ended."""
REST_S: Final = PRESENT_S + 0.5
"""The pause after taking or giving a partition: until then, messages may be older than that."""
# others may write to the topic
MAX_PROCESSES: Final = 1000
# as many partitions as a process can have, with the longest names
_MAX_BYTES: Final = 200_000
MAX_INSTANCE: Final = 200
"""The longest `instance`."""
GIVE_WAIT_S: Final = 120.0
"""How long a partition that is to be given away waits for a process with its state."""


class PresenceMessage(BaseModel):
    """What a process says about itself. `instance` is unique for each start of a process.

    `acknowledged`: the partitions that it holds, each with the entry before which everything is acknowledged (None:
    unknown). `ready`: the partitions of others whose state it has; None: it is no standby.
    """

    model_config = ConfigDict(frozen=True)

    instance: str = Field(max_length=MAX_INSTANCE)
    tenants: frozenset[str]
    acknowledged: dict[str, EntryPosition | None] = {}
    ready: frozenset[str] | None = None

    @property
    def held(self) -> int:
        return len(self.acknowledged)

    def reads(self, partition: str) -> bool:
        return partition.removeprefix("persistent://").partition("/")[0] in self.tenants

    def is_ready(self, partition: str) -> bool:
        """Whether it has the state of a partition of another process."""
        return self.ready is not None and partition in self.ready


class Presence:
    """The other processes of the region that read one of our `tenants`. One thread writes, others read."""

    def __init__(self, instance: str, tenants: Iterable[str]) -> None:
        self.instance, self._tenants = instance, frozenset(tenants)
        self._heard: dict[str, tuple[float, PresenceMessage]] = {}
        self._rests_until_s = 0.0
        self._gives_since_s: float | None = None

    def on_changed(self, now_s: float) -> None:
        self._rests_until_s = now_s + REST_S
        self._gives_since_s = None

    def note(self, said: PresenceMessage, now_s: float) -> None:
        # a new dictionary each time, as threads of standbys read it
        heard = {name: one for name, one in self._heard.items() if now_s - one[0] < PRESENT_S}
        is_other = said.instance != self.instance and bool(said.tenants & self._tenants)
        if is_other and (said.instance in heard or len(heard) < MAX_PROCESSES):
            heard[said.instance] = now_s, said
        self._heard = heard

    def forget_owner(self, partition: str) -> None:
        """The partition was free: its owner has probably ended. If not, its next message is heard within a second."""
        self._heard = {name: one for name, one in self._heard.items() if partition not in one[1].acknowledged}

    def others(self, now_s: float) -> list[PresenceMessage]:
        """The newest message of each other process."""
        return [said for heard_s, said in self._heard.values() if now_s - heard_s < PRESENT_S]

    def held_elsewhere(self, now_s: float) -> set[str]:
        return {name for said in self.others(now_s) for name in said.acknowledged}

    def owed(self, free: Iterable[str], held: int, ready: Collection[str], now_s: float) -> set[str]:
        """The free partitions that are ours. We hold `held` partitions and have the state of `ready`.

        A partition goes to a process that has its state, else to the one with the fewest partitions.
        """
        others, shares = self.others(now_s), {self.instance: held}
        shares |= {said.instance: said.held for said in others}
        mine = set[str]()
        for name in sorted(free):
            ranks = [(name not in ready, shares[self.instance], self.instance)]
            ranks += [
                (not said.is_ready(name), shares[said.instance], said.instance) for said in others if said.reads(name)
            ]
            *_, chosen = min(ranks)
            shares[chosen] += 1
            if chosen == self.instance:
                mine.add(name)
        return mine

    def to_give(self, names: Sequence[str], held: int, now_s: float) -> str | None:
        """Which of these partitions of ours a process that holds fewer should have; None: none, or none yet."""
        poorer = [said for said in self.others(now_s) if held >= said.held + 2]
        names = [name for name in names if any(said.reads(name) for said in poorer)]
        if now_s < self._rests_until_s or not names:
            self._gives_since_s = None
            return None
        for name in reversed(names):
            if any(said.is_ready(name) for said in poorer):
                return name
        self._gives_since_s = now_s if self._gives_since_s is None else self._gives_since_s
        waits = any(said.ready is not None for said in poorer) and now_s < self._gives_since_s + GIVE_WAIT_S
        return None if waits else names[-1]

    def acknowledged(self, name: str, now_s: float) -> EntryPosition | None:
        """The entry before which the owner of a partition has acknowledged everything; None: unknown."""
        said = (one.acknowledged.get(name) for one in self.others(now_s))
        return max((position for position in said if position is not None), default=None)

    def is_standby(self, name: str, held: int, now_s: float) -> bool:
        """Whether we stand by for a partition of another process: of the processes that hold fewest, one is chosen."""
        others = self.others(now_s)
        if not any(name in said.acknowledged for said in others):
            return False
        rivals = [
            said for said in others if said.ready is not None and said.reads(name) and name not in said.acknowledged
        ]
        mine = held, _rank(self.instance, name)
        return all(mine < (said.held, _rank(said.instance, name)) for said in rivals)

    def is_held_elsewhere(self, name: str, now_s: float) -> bool:
        return any(name in said.acknowledged for said in self.others(now_s))

    def is_ready_elsewhere(self, name: str, now_s: float) -> bool:
        return any(said.is_ready(name) for said in self.others(now_s))


def _rank(instance: str, partition: str) -> bytes:
    return hashlib.blake2b(f"{instance} {partition}".encode(), digest_size=8).digest()


def decode_presence(data: bytes) -> PresenceMessage | None:
    try:
        parse_json(data, max_bytes=_MAX_BYTES)
        return PresenceMessage.model_validate_json(data)
    except (InvalidJson, ValidationError):
        return None


# When each partition is tried.

AT_ONCE: Final = 12
"""Concurrent attempts; more take a cluster no less time."""
START_S: Final = 1.5
"""A new process listens for so long before it takes any."""
RETRY_S: Final = 1.0
"""The pause between two attempts at a partition, ..."""
MAX_TRIES: Final = 32
"""... as long as that is no more than so many attempts a second: each costs the cluster an answer."""
LEAVE_S: Final = 4.0
"""A free partition of another process is left to it for so long."""
_VARIES: Final = 0.3


@dataclass(slots=True)
class _Claim:
    next_s: float
    is_asked: bool = False
    is_taken: bool = False
    free_since_s: float | None = None


class Claims:
    """The partitions of a process, and when each is tried next. `draw`: a number from 0 to 1, to vary the pauses."""

    def __init__(self, presence: Presence, draw: Callable[[], float], now_s: float) -> None:
        self._presence, self._draw, self._begins_s = presence, draw, now_s + START_S
        self._claims: dict[str, _Claim] = {}

    def add(self, partitions: Iterable[str]) -> None:
        for name in partitions:
            self._claims.setdefault(name, _Claim(self._begins_s))

    def due(self, held: Collection[str], ready: Collection[str], now_s: float) -> list[str]:
        """The partitions to try now. None of them is due again before its answer.

        We try what is owed to us, what another process should have taken long ago, and what we have the state of: its
        owner may have ended.
        """
        if now_s < self._begins_s:
            return []
        elsewhere, free = self._presence.held_elsewhere(now_s), dict[str, float]()
        for name, one in self._claims.items():
            is_free = name not in held and name not in elsewhere
            one.free_since_s = (one.free_since_s or now_s) if is_free else None
            if one.free_since_s is not None:
                free[name] = one.free_since_s
        owed = self._presence.owed(free, len(held), ready, now_s)
        wanted = {name for name, since_s in free.items() if name in owed or now_s - since_s > LEAVE_S}
        wanted |= {name for name in ready if name in self._claims and name not in held}
        due = [name for name in wanted if not self._claims[name].is_asked and self._claims[name].next_s <= now_s]
        due = sorted(due, key=lambda name: (self._claims[name].next_s, name))[:AT_ONCE]
        for name in due:
            self._claims[name].is_asked = True
        return due

    def on_answer(self, name: str, now_s: float, *, is_taken: bool) -> None:
        """A partition was tried. `is_taken`: another process has it."""
        retry_s = max(RETRY_S, len(self._claims) / MAX_TRIES) * (1 - _VARIES * self._draw())
        self._claims[name] = _Claim(now_s + retry_s, is_taken=is_taken)

    def on_given(self, name: str, now_s: float) -> None:
        """We gave it away: if nobody takes it, it is ours again."""
        self._claims[name] = _Claim(now_s + LEAVE_S)

    def taken(self, held: Collection[str], now_s: float) -> list[str]:
        """The partitions of other processes, by what they say or by the last attempt."""
        elsewhere = self._presence.held_elsewhere(now_s)
        found = (name for name, one in self._claims.items() if one.is_taken or name in elsewhere)
        return sorted(name for name in found if name not in held)

    def unowned(self, held: Collection[str], now_s: float) -> list[str]:
        """The partitions of which no owner is known."""
        return sorted(self._claims.keys() - set(held) - set(self.taken(held, now_s)))
