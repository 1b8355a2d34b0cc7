"""The facts of payers at a snapshot: read device by device, and whether anything may be missing from them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from cloud_jobs.billing.contracts import PayerContract
from cloud_jobs.billing.contracts.published import micros
from cloud_jobs.billing.rating.facts import (
    EVENT_COLUMNS,
    Facts,
    Ints,
    Passage,
    Visit,
    driven_quarters,
    facts_of,
    in_force,
)
from cloud_jobs.billing.units import Meter
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.erasures import Erasures
from cloud_jobs.lake.snapshot_reads import erasures, erasures_since, event_rows, of_devices
from cloud_jobs.lake.snapshots import LakeState
from cloud_jobs.lake.tables import KEPT_FROM, Lake
from cloud_jobs.lake.transactions import stated

READ_BACK_DAYS: Final = (1, 7, 31, 92)
"""How far before a period the begin of a visit is looked for, step by step; beyond the last one it is unknown."""
_DAY: Final = timedelta(days=1)
_FENCE: Final = ("tenant", "device", "place")
_CROSSINGS: Final = pa.array(["enter", "exit"])
_INSIDE: Final = pa.array(["enter", "exit", "dwell"])


def sells_facts(contract: PayerContract) -> bool:
    return any(terms.sells_facts for terms in contract.accounts)


@dataclass(slots=True)
class FactLists:
    """The facts of a payer, added up over parts of its devices."""

    visits: list[Visit] = field(default_factory=list)
    open: list[Visit] = field(default_factory=list)
    passages: list[Passage] = field(default_factory=list)
    driven: dict[TenantDevice, Ints] = field(default_factory=dict)

    @property
    def facts(self) -> Facts:
        return Facts(
            visits=tuple(self.visits), open=tuple(self.open), passages=tuple(self.passages), driven=self.driven
        )


def read_facts(
    lake: Lake,
    snapshot: LakeState,
    found: Mapping[str, FactLists],
    *,
    contracts: Iterable[PayerContract],
    devices: Collection[TenantDevice],
    usage: pa.Table,
) -> None:
    """Adds the facts of some devices to `found`, by payer. `usage`: of these devices in the periods of the contracts.

    A payer's facts depend on its devices and days alone, not on who is read with it. Raises LakeError.
    """
    asked = {*devices}
    of_period: dict[tuple[datetime, datetime], list[PayerContract]] = defaultdict(list)
    for one in contracts:
        of_period[one.period.start, one.period.end].append(one)
    for (start, end), payers in of_period.items():
        payers_of: dict[TenantDevice, list[str]] = defaultdict(list)
        for one in payers:
            for device in asked.intersection(one.devices):
                payers_of[device].append(one.id)
        selling = [
            one
            for one in payers
            if any(Meter.DRIVEN_DAY in span.tariff.sold for terms in one.accounts for span in terms.spans)
        ]
        driving = asked.intersection(device for one in selling for device in one.devices)
        driven = driven_quarters(of_devices(usage, driving)) if driving else {}
        events = _events(lake, snapshot, payers_of, (start, end), [*driven])
        made = facts_of(events, micros(start), micros(end))
        for kind in ("visits", "open", "passages"):
            for fact in getattr(made, kind):
                for payer in payers_of.get(TenantDevice(fact.tenant, fact.device), ()):
                    getattr(found[payer], kind).append(fact)
        for device, quarters in driven.items():
            for payer in payers_of[device]:
                found[payer].driven[device] = quarters


def _events(
    lake: Lake,
    snapshot: LakeState,
    devices: Collection[TenantDevice],
    period: tuple[datetime, datetime],
    everywhere: Sequence[TenantDevice],
) -> pa.Table:
    """The events of a period, and before it as far back as visits of the period may have begun.

    `everywhere`: devices that may have been inside a fence for all of the period, without an event.
    """
    first = _midnight(period[0].astimezone(UTC).date())
    parts = [event_rows(lake, snapshot, devices, first - _DAY, period[1], columns=EVENT_COLUMNS)]
    read = READ_BACK_DAYS[0]
    for days in READ_BACK_DAYS[1:]:
        wanted = {*everywhere, *_without_begin(pa.concat_tables(parts), period[0])}
        if not wanted:
            break
        begin, end = (first - timedelta(days=one) for one in (days, read))
        earlier = event_rows(lake, snapshot, wanted, begin, end, columns=EVENT_COLUMNS)
        parts.append(earlier.filter(pc.is_in(earlier["kind"], _INSIDE)))
        read = days
    return pa.concat_tables(parts)


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


def _without_begin(events: pa.Table, start: datetime) -> Iterator[TenantDevice]:
    """The devices that were seen at a fence in the period, and for which no earlier crossing of it is read yet."""
    rows = in_force(events)
    is_earlier = pc.less(rows["time"], pa.scalar(start, rows["time"].type))
    seen = rows.filter(pc.and_(pc.invert(is_earlier), pc.is_in(rows["kind"], _INSIDE))).select(_FENCE)
    known = rows.filter(pc.and_(is_earlier, pc.is_in(rows["kind"], _CROSSINGS))).select(_FENCE)
    unknown = seen.group_by([*_FENCE]).aggregate([]).join(known, [*_FENCE], join_type="left anti")
    yield from map(TenantDevice, unknown["tenant"].to_pylist(), unknown["device"].to_pylist())


# What a clerk sees of facts that are not certain, and why a closing with facts is not final.


def unseen_visits(contract: PayerContract, facts: Facts) -> dict[str, int]:
    """How many visits that a payer's closing charges have a begin or an end that was not seen; {} without facts."""
    if not sells_facts(contract):
        return {}
    start_us, end_us = micros(contract.period.start), micros(contract.period.end)
    charged = [one for one in facts.visits if start_us <= one.charged_us < end_us]
    return {
        "unseen_begins": sum(not one.entered for one in charged),
        "unseen_ends": sum(not one.left for one in charged),
    }


_AGAIN: Final = "run `cloud-jobs geofence`, then close again"


@dataclass(frozen=True, slots=True)
class FactsState:
    """`open_end`: why events at a snapshot are not those of its usage and fences; None if they are.

    `erased`: the requests by which events are erased. `kept_from`: events of earlier days are erased.
    """

    open_end: str | None = None
    erased: Erasures = field(default_factory=lambda: Erasures(()))
    kept_from: date = date.min

    def open_ends(self, contract: PayerContract) -> list[str]:
        found = [] if self.open_end is None else [self.open_end]
        start, end = contract.period.start, contract.period.end
        if self.kept_from > start.astimezone(UTC).date():
            found.append(f"events before {self.kept_from} are erased, and with them visits; what is posted stays")
        found += [
            f"{device.tenant}/{device.device}: events are erased at a person's request; what is posted stays"
            for device in contract.devices
            if any(one.before > start and one.since < end for one in self.erased.requests(*device) if one.since)
        ]
        return found


def facts_state(lake: Lake, snapshot: LakeState, fences: int) -> FactsState:
    """`fences`: the number of the snapshot's fences. Raises LakeError."""
    open_end = None
    if snapshot.events_covers is None:
        open_end = f"visits and passages were never computed; {_AGAIN}"
    elif not snapshot.covers <= snapshot.events_covers <= snapshot.ingest_number:
        behind = f"cover {snapshot.events_covers:,} commits of the ingest, and usage {snapshot.covers:,}"
        open_end = f"visits and passages {behind}; {_AGAIN}"
    elif snapshot.events_fences != fences:
        open_end = f"visits and passages were computed with other fences than those of the snapshot; {_AGAIN}"
    # also what was erased since the snapshot: no read shows it any more
    erased = Erasures([*erasures(lake, snapshot), *erasures_since(lake, snapshot)])
    kept_from = stated(lake.open("geofence_events"), KEPT_FROM)
    return FactsState(open_end, erased, date.min if kept_from is None else date.fromordinal(kept_from))
