"""Records of probes as they show somewhere: which probe and item each is, and under which record id. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple

from deploy.canary.hops import ProbeItem
from deploy.canary.script import CANARY, POSITION, CanaryScript
from deploy.canary.sensor import canary_name
from waybill.record import Canary, Position, decode

__all__ = ["RecordBook", "RecordOfProbe", "Showing", "content_fault", "records_of_batch"]

_PROBES: Final = 1_000
"""So many probes are remembered."""


class RecordOfProbe(NamedTuple):
    """A record of the canary's device. `place`: latitude and longitude of a fix; `name`: of a canary."""

    item: ProbeItem
    epoch: int
    seq: int
    place: tuple[float, float] | None = None
    name: str = ""

    @property
    def record_id(self) -> tuple[int, int]:
        """Epoch and seq: of one device these are its record id."""
        return self.epoch, self.seq


class Showing(NamedTuple):
    """What some records are to a place: items that are new there, how many came again under their record id, and how
    many were there under another id."""

    new: list[ProbeItem]
    again: int
    under_other_ids: int


class RecordBook:
    """Under which record ids the records of the newest probes showed at one place."""

    def __init__(self) -> None:
        self._probes: OrderedDict[int, dict[ProbeItem, tuple[int, int]]] = OrderedDict()

    def note(self, number: int, records: Iterable[RecordOfProbe]) -> Showing:
        """Takes in what shows of a probe."""
        known = self._probes.setdefault(number, {})
        while len(self._probes) > _PROBES:
            self._probes.popitem(last=False)
        new, again, others = list[ProbeItem](), 0, 0
        for record in records:
            before = known.get(record.item)
            # the first id that an item shows with is its own; whichever came later is the double
            if before is None:
                known[record.item] = record.record_id
                new.append(record.item)
            elif before == record.record_id:
                again += 1
            else:
                others += 1
        return Showing(new, again, others)

    def ids(self, number: int) -> dict[ProbeItem, tuple[int, int]]:
        """The record ids of a probe, as far as they are known."""
        return dict(self._probes.get(number, {}))


def records_of_batch(data: bytes, device: str) -> list[RecordOfProbe]:
    """The fixes and canaries in a message; of another device none. Raises WireError."""
    batch = decode(data)
    if batch.device != device:
        return []
    found = list[RecordOfProbe]()
    for record in batch.records:
        t_ms, ids = record.device_time_us // 1000, (batch.epoch, record.seq)
        match record.body:
            case Position(latitude=latitude, longitude=longitude):
                found.append(RecordOfProbe(ProbeItem(POSITION, t_ms), *ids, (latitude, longitude)))
            case Canary(id=name):
                found.append(RecordOfProbe(ProbeItem(CANARY, t_ms), *ids, None, name))
    return found


def content_fault(script: CanaryScript, device: str, number: int, record: RecordOfProbe) -> str:
    """How a record differs from what was sent; "": it does not."""
    if record.item.name == CANARY:
        wanted = canary_name(device, number)
        return "" if record.name == wanted else f"a canary names {record.name[:80]!r}, not {wanted!r}"
    place = _places(script, number).get(record.item.t_ms)
    # a moment at which no fix was due is no item, and missing ones are counted elsewhere
    if place is None or record.place is None or place == record.place:
        return ""
    return f"a fix is at {record.place}, not at {place}"


@lru_cache(maxsize=64)
def _places(script: CanaryScript, number: int) -> dict[int, tuple[float, float]]:
    begins_ms = script.begins_ms(number)
    return {begins_ms + fix.after_ms: (fix.latitude, fix.longitude) for fix in script.fixes(number)}
