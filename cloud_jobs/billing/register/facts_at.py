"""The facts of payers at a snapshot: read device by device, and whether anything may be missing from them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from cloud_jobs.billing.contracts import REACH, Assigned, PayerContract
from cloud_jobs.billing.contracts.published import micros
from cloud_jobs.billing.rating.facts import (
    EVENT_COLUMNS,
    DeviceFacts,
    Facts,
    driven_quarters,
    driven_rows,
    facts_in_force,
    in_force,
)
from cloud_jobs.billing.units import Meter
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.erasures import Erasures
from cloud_jobs.lake.snapshot_reads import erasures, erasures_since, event_rows, of_devices
from cloud_jobs.lake.snapshots import LakeState
from cloud_jobs.lake.tables import KEPT_FROM, Lake
from cloud_jobs.lake.transactions import stated

READ_BACK_DAYS: Final = (1, 7, 31, 92, REACH.days)
"""How far before a period the begin of a visit is looked for, step by step; beyond the last one it is unknown."""
_LONG_DAYS: Final = 92
"""So far back each device is looked for that drives inside zones: one zone may lie in another."""
_DAY: Final = timedelta(days=1)
_FENCE: Final = ("tenant", "device", "place")
_CROSSINGS: Final = pa.array(["enter", "exit"])
_INSIDE: Final = pa.array(["enter", "exit", "dwell"])


def sells_facts(contract: PayerContract) -> bool:
    """In its period."""
    return any(terms.sells_facts for terms in contract.accounts)


def read_facts(
    lake: Lake,
    snapshot: LakeState,
    found: Mapping[str, dict[TenantDevice, DeviceFacts]],
    *,
    contracts: Iterable[PayerContract],
    devices: Collection[TenantDevice],
    usage: pa.Table,
) -> None:
    """Adds the facts of some devices to `found`, by payer. `usage`: of these devices in the periods of the contracts.

    A payer's facts depend on its devices and days alone, not on who is read with it. Raises LakeError.
    """
    of_period: dict[tuple[datetime, datetime], list[PayerContract]] = defaultdict(list)
    for one in contracts:
        of_period[one.period.start, one.period.end].append(one)
    for period, payers in of_period.items():
        asked = {device for one in payers for device in one.devices}.intersection(devices)
        sought = _Sought.of(payers, asked, usage, period)
        events = _events(lake, snapshot, asked, period, sought)
        made = facts_in_force(events, micros(period[0]), micros(period[1]), sought.driven)
        for one in payers:
            found[one.id].update((device, made[device]) for device in made.keys() & {*one.devices})


class _Sought(NamedTuple):
    """The devices that may have been inside a fence at a period's begin, without an event in the period that says so.

    `leaving`: an account gives them away or is sold no stays any more, which ends their visits. `staying`: their stays
    are sold. `driven`: quarters in which they drove, if driven days are sold; `zones`: where, as places of fences.
    """

    leaving: Set[TenantDevice]
    staying: Set[TenantDevice]
    driven: Mapping[TenantDevice, Sequence[int]]
    zones: pa.Table

    @classmethod
    def of(
        cls,
        payers: Iterable[PayerContract],
        devices: set[TenantDevice],
        usage: pa.Table,
        period: tuple[datetime, datetime],
    ) -> _Sought:
        leaving, staying, driving = set[TenantDevice](), set[TenantDevice](), set[TenantDevice]()
        start_us, end_us = map(micros, period)
        for terms in (terms for one in payers for terms in one.accounts):
            sold, mine = frozenset[Meter]().union(*(span.tariff.sold for span in terms.spans)), terms.assigned
            if Meter.DRIVEN_DAY in sold:
                driving |= devices.intersection(one.of_device for one in mine)
            if Meter.STAY in sold:
                staying |= devices.intersection(one.of_device for one in mine)
                # the end of their sale ends stays, too
                is_sold = all(Meter.STAY in span.tariff.sold for span in terms.spans)
                ended = (one for one in terms.held if not is_sold or start_us < one.end_us <= end_us)
                leaving |= devices.intersection(TenantDevice(*one[:2]) for one in ended)
        rows = driven_rows(of_devices(usage, driving) if driving else usage.slice(0, 0))
        zones = rows.select(["tenant", "device", "zone"]).rename_columns([*_FENCE])
        return cls(leaving, staying, driven_quarters(rows), zones.group_by([*_FENCE]).aggregate([]))

    def without_begin(self, events: pa.Table, start: datetime, days: int) -> set[TenantDevice]:
        """Those of which events in force until `days` before the period do not say where they were at its begin."""
        inside = events.filter(pc.is_in(events["kind"], _INSIDE))
        is_earlier = pc.less(inside["time"], pa.scalar(start, inside["time"].type))
        crossed = inside.filter(pc.and_(is_earlier, pc.is_in(inside["kind"], _CROSSINGS))).select(_FENCE)
        seen = inside.filter(pc.invert(is_earlier)).select(_FENCE).group_by([*_FENCE]).aggregate([])
        unknown = [seen.join(crossed, [*_FENCE], join_type="left anti")]
        unknown += [self.zones.join(inside.select(_FENCE), [*_FENCE], join_type="left anti")]
        found = {device for rows in unknown for device in _devices_of(rows)} | self.leaving
        found |= self.driven.keys() if days < _LONG_DAYS else set()
        return found | (self.staying - {*_devices_of(crossed)} if self.staying else set())


def _devices_of(rows: pa.Table) -> Iterator[TenantDevice]:
    rows = rows.group_by(["tenant", "device"]).aggregate([])
    return map(TenantDevice, rows["tenant"].to_pylist(), rows["device"].to_pylist())


def _events(
    lake: Lake,
    snapshot: LakeState,
    devices: Collection[TenantDevice],
    period: tuple[datetime, datetime],
    sought: _Sought,
) -> pa.Table:
    """The events in force of a period, and before it as far back as visits of the period may have begun."""
    first = datetime.combine(period[0].astimezone(UTC).date(), time(), UTC)
    read = READ_BACK_DAYS[0]
    events = in_force(event_rows(lake, snapshot, devices, first - read * _DAY, period[1], columns=EVENT_COLUMNS))
    for days in READ_BACK_DAYS[1:]:
        wanted = sought.without_begin(events, period[0], read)
        if not wanted:
            break
        begin, end = (first - timedelta(days=one) for one in (days, read))
        earlier = event_rows(lake, snapshot, wanted, begin, end, columns=EVENT_COLUMNS)
        # a revision of an event lies on the day of the event
        events = pa.concat_tables([events, in_force(earlier.filter(pc.is_in(earlier["kind"], _INSIDE)))])
        read = days
    return events


# What a clerk sees of facts that are not certain, and why a closing with facts is not final.


def unseen_visits(contract: PayerContract, facts: Facts) -> dict[str, int]:
    """How many visits that a payer's closing charges have a begin or an end that was not seen, and how many last; {}
    without facts.
    """
    if not sells_facts(contract):
        return {}
    start_us, end_us = micros(contract.period.start), micros(contract.period.end)
    held = defaultdict[TenantDevice, list[Assigned]](list)
    for one in (one for account in contract.accounts for one in account.held):
        held[one.of_device].append(one)
    begins = ends = lasting = 0
    for device, of in facts.items():
        times = [(one.begin_us, one.end_us) for one in held[device]]
        for visit in of.visits:
            # the end of its assignment ends it
            at = [
                min(visit.charged_us, end - 1) for begin, end in times if visit.begin_us < end and begin <= visit.end_us
            ]
            last = max(at, default=0)
            if start_us <= last < end_us:
                begins += not visit.entered
                ends += not visit.left
            lasting += last >= end_us
    return {"unseen_begins": begins, "unseen_ends": ends, "lasting_visits": lasting}


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
        """Also of the earlier periods that the contract depends on, by name."""
        found = [] if self.open_end is None else [self.open_end]
        for one in (*contract.earlier, contract):
            start, end, of_period = one.period.start, one.period.end, "" if one is contract else f"{one.period}: "
            if not sells_facts(one):
                continue
            if self.kept_from > start.astimezone(UTC).date():
                gone = f"events before {self.kept_from} are erased, and with them visits; what is posted stays"
                found.append(f"{of_period}{gone}")
            found += [
                f"{of_period}{device.tenant}/{device.device}: events are erased at a person's request; "
                "what is posted stays"
                for device in one.devices
                if any(by.before > start and by.since < end for by in self.erased.requests(*device) if by.since)
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
