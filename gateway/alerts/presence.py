"""The alert processes of a region: what each holds, so that they share evenly, and who stands by for what. Pure.

Each says every second which partitions it holds, up to where it has acknowledged each, and for which it is ready to go
on. Whoever holds at least two more than another gives one back, to one that is ready for it as far as there is one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from waybill.pulsar.pulsar_positions import EntryPosition
from waybill.record import InvalidJson, parse_json

__all__ = ["PRESENT_S", "Presence", "PresenceMessage", "decode_presence", "encode_presence"]

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


class PresenceMessage(NamedTuple):
    """What a process says of itself. `instance`: what distinguishes this start of it from every other.

    `held`: how many partitions it holds. `tenants`: whose batches it reads; None: it did not say, and may read any.
    `acknowledged`: of each the entry before which everything is acknowledged;
    None: it is not known. `ready`: those that others hold and for which it could go on; None: it stands by for none.
    """

    instance: str
    held: int
    acknowledged: Mapping[str, EntryPosition | None] = {}
    ready: frozenset[str] | None = None
    tenants: frozenset[str] | None = None

    def reads(self, partition: str) -> bool:
        """Whether a partition may be given to it."""
        return self.tenants is None or _tenant_of(partition) in self.tenants


class Presence:
    """Who is there besides us. `instance`: ours. `tenants`: whose batches we read: who reads none of theirs is passed
    over. One thread notes what is heard, others ask."""

    def __init__(self, instance: str, tenants: Iterable[str] = ()) -> None:
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
        is_other = said.instance != self.instance and (said.tenants is None or bool(said.tenants & self._tenants))
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


def encode_presence(said: PresenceMessage) -> bytes:
    """A message of what a process says of itself."""
    sets = {"ready": said.ready, "tenants": said.tenants}
    lists = {name: None if words is None else sorted(words) for name, words in sets.items()}
    return json.dumps(said._asdict() | lists).encode()


def decode_presence(data: bytes) -> PresenceMessage | None:
    """What a process said of itself; None for what is no such message."""
    try:
        said: Any = parse_json(data, max_bytes=_MAX_BYTES)
    except InvalidJson:
        return None
    if not isinstance(said, dict) or type(said.get("instance")) is not str or type(said.get("held")) is not int:
        return None
    # A process that holds less than nothing would be given every partition.
    if len(said["instance"]) > MAX_INSTANCE or said["held"] < 0:
        return None
    acknowledged, lists = said.get("acknowledged", {}), (said.get("ready"), said.get("tenants"))
    if not isinstance(acknowledged, dict) or not all(one is None or isinstance(one, list) for one in lists):
        return None
    positions = {name: _position(value) for name, value in acknowledged.items()}
    return PresenceMessage(said["instance"], said["held"], positions, *(_words(one) for one in lists))


def _words(found: list[Any] | None) -> frozenset[str] | None:
    return None if found is None else frozenset(one for one in found if type(one) is str)


def _position(value: Any) -> EntryPosition | None:
    if not isinstance(value, list) or len(value) != 2 or any(type(one) is not int for one in value):
        return None
    return EntryPosition(*value)
