"""Visits and passages: what happened at fences and gates, from the events in force. Pure.

A visit is an enter and the next exit of a device at one fence; other fences do not matter. An enter that another enter
follows: its end was not seen, and the time known is until the last event of the visit. An exit without an enter: its
begin was not seen, and the time known is that of the exit's `value`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import sha256
from itertools import groupby, pairwise
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cloud_jobs.billing.contracts.published import EPOCH
from cloud_jobs.billing.rating.cells_of_usage import QUARTER_US, quarters_of
from cloud_jobs.billing.rating.charges import MeteredRows
from cloud_jobs.lake.coverage import TenantDevice, text_ranks
from cloud_jobs.lake.schemas import LATE_POSITIONS, WHOLE_DEVICE

Ints = NDArray[np.int64]
EVENT_COLUMNS: Final = ("id", "revision", "tenant", "device", "kind", "place", "time", "value", "retracted")
"""The columns of `geofence_events` that facts need."""
BEFORE: Final = timedelta(days=1)
"""Facts include those of this time before the period: of a pair of gates, or of the dearest, one may lie there."""


class Visit(NamedTuple):
    """A stay of a device in one fence, in microseconds since 1970.

    `begin_us`: of the enter, or the earliest moment known inside; `entered`: it is a crossing that was seen. A price of
    visits counts only visits that were entered.
    `end_us`: of the exit, or the latest moment known inside; of an open visit the end of the period, as no exit was
    seen until then. `left`: it is a crossing that was seen.
    `charged_us`: when its time is charged: at the exit, or at the next enter if no exit was seen; at or after the
    period's end for an open visit.
    `ids`: of the events that it is made of, in order of time.
    """

    tenant: str
    device: str
    zone: str
    begin_us: int
    end_us: int
    charged_us: int
    entered: bool
    left: bool
    ids: tuple[str, ...]


class Passage(NamedTuple):
    """A passage of a gate."""

    tenant: str
    device: str
    gate: str
    moment_us: int
    forward: bool
    id: str


@dataclass(slots=True)
class DeviceFacts:
    """The facts of a device in a period: visits in the order of fence and time, passages in that of time.

    `visits`: those whose time is charged in the period or up to BEFORE before it, and those that have not ended at the
    period's end: a price of visits counts them when they are entered, their time is charged later. `passages`: of the
    period and BEFORE. A fact before the period belongs to another closing: it is charged there.
    `driven`: the numbers (from 1970) of the quarters of an hour in which it drove inside any zone, ascending.
    """

    visits: list[Visit] = field(default_factory=list)
    passages: list[Passage] = field(default_factory=list)
    driven: Sequence[int] = ()


Facts = Mapping[TenantDevice, DeviceFacts]
NO_FACTS: Final[Facts] = MappingProxyType({})

_ENTER, _EXIT, _DWELL = 0, 1, 2
_KINDS: Final = ("enter", "exit", "dwell")


def facts_of(
    events: pa.Table, begin_us: int, end_us: int, driven: Mapping[TenantDevice, Sequence[int]] = MappingProxyType({})
) -> dict[TenantDevice, DeviceFacts]:
    """The facts of the period [begin_us, end_us) from revisions of events (EVENT_COLUMNS), in any order.

    Duplicates, older and retracted revisions, and events at or after the period's end change nothing. `events` must
    reach back to the enter of each visit. `driven`: matters for devices that have events.
    """
    return facts_in_force(in_force(events), begin_us, end_us, driven)


def facts_in_force(
    rows: pa.Table, begin_us: int, end_us: int, driven: Mapping[TenantDevice, Sequence[int]]
) -> dict[TenantDevice, DeviceFacts]:
    """`facts_of`, from events in force."""
    rows = rows.filter(pc.less(rows["time"].cast(pa.int64()), end_us))
    earliest, found = (
        begin_us - BEFORE // timedelta(microseconds=1),
        defaultdict[TenantDevice, DeviceFacts](DeviceFacts),
    )
    visits = _visits(rows.filter(pc.is_in(rows["kind"], pa.array(_KINDS))), end_us)
    for of, of_device in groupby((one for one in visits if one.charged_us >= earliest), itemgetter(0, 1)):
        found[TenantDevice._make(of)].visits = [*of_device]
    passages = _passages(rows.filter(pc.is_in(rows["kind"], pa.array(["forward", "backward"]))), earliest)
    for of, passed in groupby(passages, itemgetter(0, 1)):
        found[TenantDevice._make(of)].passages = [*passed]
    for device in found.keys() & driven.keys():
        found[device].driven = driven[device]
    return dict(found)


def in_force(events: pa.Table) -> pa.Table:
    """The newest revision of each event, unless it is retracted, in the order of ids."""
    if not events.num_rows:
        return events
    number = text_ranks(events["id"])[0]
    order = np.lexsort((events["revision"].to_numpy(), number))
    newest = np.append(np.diff(number[order]) != 0, True)
    rows = events.take(pa.array(order[newest]))
    return rows.filter(pc.invert(rows["retracted"]))


def _visits(rows: pa.Table, end_us: int) -> Iterator[Visit]:
    """Visits in order, also those that have not ended at `end_us`."""
    if not rows.num_rows:
        return
    kind = pc.index_in(rows["kind"], pa.array(_KINDS)).to_numpy().astype(np.int64)
    time, value_us = rows["time"].cast(pa.int64()).to_numpy(), np.rint(rows["value"].to_numpy() * 1e6).astype(np.int64)
    place = [text_ranks(rows[name])[0] for name in ("tenant", "device", "place")]
    # at one moment the exit of an earlier visit comes before an enter, that of a visit without length after it
    rank = np.choose(kind, [2, np.where(value_us == 0, 3, 1), 0])
    order = np.lexsort((rank, time, *reversed(place)))
    rows, kind, time, since = rows.take(pa.array(order)), kind[order], time[order], time[order] - value_us[order]
    # a visit begins with an enter, after an exit, and at another fence
    starts = kind == _ENTER
    starts[1:] |= kind[:-1] == _EXIT
    starts[0] = True
    for one in place:
        starts[1:] |= np.diff(one[order]) != 0
    first = np.flatnonzero(starts)
    last = np.append(first[1:], len(starts)) - 1
    entered, left = kind[first] == _ENTER, kind[last] == _EXIT
    same_fence = np.zeros(len(first), np.bool_)
    same_fence[:-1] = np.logical_and.reduce([one[order][first[:-1]] == one[order][first[1:]] for one in place])
    known_until = np.append(time[last][:-1], 0)
    # an exit's value may reach back before the exit of the visit before
    before = np.where(np.append(False, same_fence[:-1]), np.append(0, known_until[:-1]), np.iinfo(np.int64).min)
    begin = np.where(entered, time[first], np.maximum(since[first], before))
    # an enter follows what was not left
    is_open = ~left & ~same_fence
    end = np.where(is_open, end_us, time[last])
    charged = np.where(left, end, np.where(is_open, end_us, np.append(time[first][1:], 0)))
    ids = rows["id"].to_pylist()
    named = [rows[name].take(pa.array(first)).to_pylist() for name in ("tenant", "device", "place")]
    numbers = (one.tolist() for one in (begin, end, charged, entered, left, first, last + 1))
    for *of_visit, at, until in zip(*named, *numbers, strict=True):
        yield Visit._make([*of_visit, tuple(ids[at:until])])


def _passages(rows: pa.Table, earliest_us: int) -> Iterable[Passage]:
    rows = rows.filter(pc.greater_equal(rows["time"].cast(pa.int64()), earliest_us))
    columns: list[list[Any]] = [rows[name].to_pylist() for name in ("tenant", "device", "place")]
    columns += [rows["time"].cast(pa.int64()).to_pylist(), pc.equal(rows["kind"], "forward").to_pylist()]
    made = map(Passage._make, zip(*columns, rows["id"].to_pylist(), strict=True))
    return sorted(made, key=lambda one: (one.tenant, one.device, one.moment_us, one.gate, one.id))


def driven_rows(usage: pa.Table) -> pa.Table:
    """The rows of usage with distance in a zone. Distance outside all zones is inside none."""
    rows = usage.filter(pc.invert(pc.is_in(usage["zone"], pa.array(["", WHOLE_DEVICE, LATE_POSITIONS]))))
    return rows.filter(pa.array(quarters_of(rows["distance_mm"]).any(axis=1)))


def driven_quarters(usage: pa.Table) -> dict[TenantDevice, list[int]]:
    """`DeviceFacts.driven` from rows of usage in force: a zone inside another does not matter, any zone counts."""
    rows = driven_rows(usage)
    row, quarter = np.nonzero(quarters_of(rows["distance_mm"]))
    if not len(row):
        return {}
    (tenant, _), (device, devices) = text_ranks(rows["tenant"]), text_ranks(rows["device"])
    number = rows["hour"].cast(pa.int64()).to_numpy()[row] // QUARTER_US + quarter
    key, number, at = _distinct((tenant * devices + device)[row], number, row)
    bounds = [0, *(np.flatnonzero(np.diff(key)) + 1).tolist(), len(key)]
    names = (rows[name].take(pa.array(at[bounds[:-1]])).to_pylist() for name in ("tenant", "device"))
    parts = (number[begin:end].tolist() for begin, end in pairwise(bounds))
    return {TenantDevice(*of): part for *of, part in zip(*names, parts, strict=True)}


def _distinct(key: Ints, number: Ints, row: Ints) -> tuple[Ints, Ints, Ints]:
    """Distinct pairs of key and number in order, each with one of its rows."""
    order = np.lexsort((number, key))
    key, number, row = key[order], number[order], row[order]
    is_new = np.append(True, (np.diff(key) != 0) | (np.diff(number) != 0))[: len(key)]
    return key[is_new], number[is_new], row[is_new]


def rows_of_facts(facts: Iterable[Visit | Passage]) -> MeteredRows:
    """The events behind a charge of facts (at least one), in the form of usage rows: number, first and last moment, and
    SHA-256 over their ids in order. Repeated facts count once.
    """
    spans = {one[-1]: one[3:5] if isinstance(one, Visit) else (one.moment_us, one.moment_us) for one in facts}
    ids = [name for of in spans for name in (of if isinstance(of, tuple) else (of,))]
    first, last = (
        EPOCH + timedelta(microseconds=one)
        for one in (min(begin for begin, _ in spans.values()), max(end for _, end in spans.values()))
    )
    return MeteredRows(len(ids), first, last, sha256("".join(sorted(ids)).encode()).hexdigest())
