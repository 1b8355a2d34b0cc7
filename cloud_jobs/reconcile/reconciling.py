"""All stations of a period: what is read once for all, and what is counted part by part, here or on executors."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime, time, timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple

from cloud_jobs.billing.contracts import Contracts, PayerContract
from cloud_jobs.billing.meters import Meter
from cloud_jobs.billing.rating import rating_contract
from cloud_jobs.billing.register.close import contracts_of
from cloud_jobs.billing.register.closer import ClosedPayer, ClosingRun
from cloud_jobs.billing.register.closing import ClosingState, Days
from cloud_jobs.billing.register.metered_records import whole_hours
from cloud_jobs.billing.register.tables import Register
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.snapshot_reads import reference_rows
from cloud_jobs.lake.snapshots import Snapshot
from cloud_jobs.lake.tables import Lake
from cloud_jobs.reconcile.charged import compare_charges, compare_documents, compare_numbers
from cloud_jobs.reconcile.comparison import (
    Comparison,
    ComparisonOutcome,
    Station,
    named,
    outcome_of,
    parts,
    quantity_name,
    summed,
)
from cloud_jobs.reconcile.heads import Hours, compare_heads
from cloud_jobs.reconcile.metered import compare_usage
from cloud_jobs.reconcile.odometers import compare_odometers
from cloud_jobs.reconcile.stored_records import compare_centre, compare_regions
from cloud_jobs.reconcile.used import CountedUsage, DevicePart, count_part

_DEVICES_AT_ONCE: Final = 250
_NAME: Final = "reconcile"
RunParts = Callable[[Callable[[DevicePart], CountedUsage], Sequence[DevicePart]], Iterable[CountedUsage]]
"""What runs a function on each part, here or on executors."""


class Reconciled(NamedTuple):
    """All comparisons of a period, in the order of the stations."""

    snapshot: Snapshot
    days: Days
    comparisons: list[Comparison]

    @property
    def outcome(self) -> ComparisonOutcome:
        """Equal, or what is wrong."""
        return outcome_of(self.comparisons)

    def values(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "snapshot": self.snapshot.id,
            "first_day": self.days[0].isoformat(),
            "last_day": self.days[1].isoformat(),
            "outcome": self.outcome.value,
            "comparisons": [one.values() for one in self.comparisons],
        }


def run_here(work: Callable[[DevicePart], CountedUsage], items: Sequence[DevicePart]) -> Iterator[CountedUsage]:
    """Each part in this process, one after the other."""
    return map(work, items)


def reconcile(
    lake: Lake,
    snapshot: Snapshot,
    days: Days,
    payers: Collection[str] | None = None,
    *,
    now: datetime,
    run_parts: RunParts = run_here,
) -> Reconciled:
    """Compares the stations of some days for some payers, or for all devices and payers, by a snapshot.

    Raises UnknownPayer for one that was asked for and never pays; BillingError, LakeError, StoreUnavailable.
    """
    run = ClosingRun(name=_NAME, snapshot=snapshot.number, snapshot_id=snapshot.id, now=now)
    contracts, refused = contracts_of(lake, snapshot, days, payers, run)
    hours = _hours(days, contracts)
    mine = sorted({device for one in contracts for device in one.devices})
    devices = None if payers is None else mine
    hours_of = _hours_of(contracts)
    heads = compare_heads(lake, snapshot, devices, hours, hours_of)
    found = [*heads.comparisons]
    if payers is None and (never_heard := [*({*mine} - heads.received.keys())]):
        found += [*compare_heads(lake, snapshot, never_heard, hours, hours_of).comparisons[1:]]
    regions = compare_regions(lake, snapshot, devices, sorted(heads.received), whole_hours(hours))
    found += regions.comparisons
    found += compare_centre(lake, snapshot, devices, heads.received)
    used = CountedUsage()
    others = sorted(heads.received.keys() - {*mine}) if payers is None else []
    for one in run_parts(count_part(lake, snapshot), [*_parts(contracts, others, hours)]):
        used.add(one)
    found += compare_usage(lake, snapshot, used, regions.records, everyone=payers is None)
    found += compare_odometers(used.observed)
    found += _unbilled(lake, snapshot, used, refused, hours[1])
    register = Register(lake)
    names = {*(one.id for one in contracts), *(one.closing.key.payer for one in refused)}
    if payers is None:
        # who was closed for these days and pays no more: what is posted to it stands until it is taken back
        names |= {*register.payers(*days)}
    found += [*_nothing_to_compare(names), *_charges(register, snapshot, days, sorted(names), used)]
    return Reconciled(snapshot, days, found)


def _charges(
    register: Register, snapshot: Snapshot, days: Days, names: Sequence[str], used: CountedUsage
) -> Iterator[Comparison]:
    yield from summed(compare_charges(register, snapshot, days, names, used.owed), "all payers")
    yield from summed(compare_documents(register, snapshot, days, names), "all payers")
    yield from compare_numbers(register)


def _nothing_to_compare(names: Collection[str]) -> Iterator[Comparison]:
    if not names:
        why = "nobody pays for these days by what was agreed, and nothing was closed: is the period meant?"
        yield Comparison(Station.RATED, "payers", "", None, None, why)


def _hours_of(contracts: Iterable[PayerContract]) -> dict[TenantDevice, set[Hours]]:
    """Of each device the time of each who pays for it in the period: what his closing certifies."""
    found: dict[TenantDevice, set[Hours]] = defaultdict(set)
    for contract in contracts:
        for device, span in contract.spans.items():
            found[device].add(span)
    return dict(found)


def _hours(days: Days, contracts: Sequence[PayerContract]) -> tuple[datetime, datetime]:
    """From the first moment of the days to the first one after them, by all payers' clocks and by UTC."""
    first = datetime.combine(days[0], time(), UTC)
    end = datetime.combine(days[1], time(), UTC) + timedelta(days=1)
    if not contracts:
        return first, end
    return min(one.period.start for one in contracts), max(one.period.end for one in contracts)


def _parts(
    contracts: Sequence[PayerContract], others: Sequence[TenantDevice], hours: tuple[datetime, datetime]
) -> Iterator[DevicePart]:
    """Each device once, with all who pay for it in the period."""
    agreed = {one.id: one for one in contracts}
    payers: dict[TenantDevice, list[str]] = {}
    for contract in contracts:
        for device in contract.devices:
            payers.setdefault(device, []).append(contract.id)
    # neighbours mostly have one payer, who may have very many
    rated = lru_cache(maxsize=_DEVICES_AT_ONCE)(lambda payer: rating_contract(agreed[payer]))
    for some in parts(sorted(payers), _DEVICES_AT_ONCE):
        names = sorted({payer for device in some for payer in payers[device]})
        yield DevicePart(some, [rated(payer) for payer in names], hours)
    for rest in parts(others, _DEVICES_AT_ONCE):
        yield DevicePart(rest, [], hours)


def _unbilled(
    lake: Lake, snapshot: Snapshot, used: CountedUsage, refused: Sequence[ClosedPayer], end: datetime
) -> Iterator[Comparison]:
    owed: dict[str, int] = {}
    for table in (used.owed, used.unsold):
        for (_, _, meter, _), quantity in table.items():
            owed[meter.value] = owed.get(meter.value, 0) + quantity
    nobody: dict[str, int] = {}
    for (_, meter), quantity in used.nobody.items():
        nobody[meter.value] = nobody.get(meter.value, 0) + quantity
    for meter, quantity in sorted(used.meters.items()):
        found = owed.get(meter.value, 0) + nobody.get(meter.value, 0)
        yield Comparison(
            Station.RATED, f"assigned or nobody's: {quantity_name(meter)}", "all accounts", quantity, found
        )
    unsold_by: Counter[tuple[str, str, Meter]] = Counter()
    for (payer, account, meter, _), quantity in used.unsold.items():
        unsold_by[payer, account, meter] += quantity
    unsold = (
        Comparison(Station.RATED, f"not sold: {quantity_name(meter)}", f"{payer}, {account}", None, quantity)
        for (payer, account, meter), quantity in sorted(unsold_by.items())
        if quantity
    )
    yield from summed(unsold, "all accounts")
    note = "no account that can be billed has it"
    if names := sorted(one.closing.key.payer for one in refused if one.closing.outcome is ClosingState.BLOCKED):
        note += f"; blocked: {', '.join(names[:5])}"
    yield from named(
        [
            Comparison(
                Station.RATED,
                f"nobody's: {quantity_name(meter)}",
                f"{device.tenant}/{device.device}",
                None,
                quantity,
                note,
            )
            for (device, meter), quantity in sorted(used.nobody.items())
        ]
    )
    moment = end - timedelta.resolution
    faults = Contracts(reference_rows(lake, snapshot)).without_payer(moment)
    yield from named(
        [Comparison(Station.RATED, "account without a payer", "", None, 1, str(fault)) for fault in faults]
    )
