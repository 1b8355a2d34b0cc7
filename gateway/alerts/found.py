"""Events before they have an id: with the fix that they are known by."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from gateway.alerts.slot_rows import Records
from geo.spatial import Kind, Tracks, end_fixes
from geo.spatial.event_ids import DAY_MS
from geo.spatial.ragged import Ints, run_starts


class RecordKey(NamedTuple):
    """The record id of the fix at the time of an event, or of the first one after it; and how many events of the same
    facts there are before this one."""

    epoch: int
    seq: int
    number: int


class Held(NamedTuple):
    """Where the key of what may be an event later is held: in a row, in columns with a prefix."""

    rows: Records
    row: int
    prefix: str = ""

    def key(self) -> RecordKey:
        """What is held."""
        values = self.rows[self.row]
        return RecordKey(*(int(values[self.prefix + name]) for name in RecordKey._fields))

    def hold(self, key: RecordKey) -> None:
        """From now on this."""
        for name, value in zip(RecordKey._fields, key, strict=True):
            self.rows[self.prefix + name][self.row] = value


class Found(NamedTuple):
    """Something of a part. `key`: if it was held. `hold`: where its key is to be held, as it may be an event later, or
    goes on. `goes_on`: its value may still grow.
    """

    part: int
    t_ms: int
    kind: Kind
    place: str
    value: float
    key: RecordKey | None = None
    hold: Held | None = None
    is_event: bool = True
    goes_on: bool = False


class PartEvent(NamedTuple):
    """An event of a part, with the key of its fix."""

    found: Found
    key: RecordKey


class Limits(NamedTuple):
    """The times of the first and the last fix of each part."""

    first_ms: Ints
    last_ms: Ints

    @classmethod
    def of(cls, tracks: Tracks) -> Limits:
        """Of tracks of which each part has a fix."""
        first = run_starts(tracks.fixes.device[tracks.row])
        t_ms = tracks.fixes.t_ms[tracks.row]
        return cls(t_ms[first], t_ms[np.append(first[1:], True)])


def keyed(tracks: Tracks, fixes: Records, found: Iterable[Found]) -> Iterator[PartEvent]:
    """Events with their keys; and the keys of what may be one later are held."""
    in_order = sorted(found, key=lambda one: one[:5])
    ends = end_fixes(tracks, [one for one in in_order if one.key is None])  # type: ignore[misc]
    records = iter(zip(fixes["epoch"][ends].tolist(), fixes["seq"][ends].tolist(), strict=True))
    numbers: dict[tuple[int, int, int, int, str, str], int] = {}
    for one in in_order:
        epoch, seq = next(records) if one.key is None else one.key[:2]
        facts = (one.part, one.t_ms // DAY_MS, epoch, seq, one.kind, one.place)
        number = numbers.get(facts, 0) if one.key is None else one.key.number
        numbers[facts] = number + 1
        key = RecordKey(epoch, seq, number)
        if one.hold is not None:
            one.hold.hold(key)
        if one.is_event:
            yield PartEvent(one, key)
