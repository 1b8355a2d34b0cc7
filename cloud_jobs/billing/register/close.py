"""The closing of a period for many payers: the caller resolves contracts, tasks rate and write, the caller commits.

Nothing is shuffled: each task reads the usage of its payers' devices at the snapshot and writes the files of its
result. Lines and certificates are committed first; they count once a commit of `closings` names their run. Files of a
run that died are never named.
"""

from __future__ import annotations

import gc
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, time, timedelta
from itertools import groupby, zip_longest
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from cloud_jobs.billing.billing_period import BillingPeriod, days_text
from cloud_jobs.billing.certificates import OBSERVED_COLUMNS, DeviceCertificate, certificates_of_spans
from cloud_jobs.billing.contracts import BlockedPayer, Contracts, OtherCycle, PayerContract, UnknownPayer
from cloud_jobs.billing.documents.canonical import canonical_text
from cloud_jobs.billing.errors import BadPeriod, BillingError
from cloud_jobs.billing.rating import (
    Cell,
    MeteredKey,
    MeteredRows,
    PeriodUsage,
    PriceBooks,
    RatedAccount,
    UsageCharges,
    cell_columns,
    charges_in_columns,
    rate,
    rated_columns,
)
from cloud_jobs.billing.rating.facts import DeviceFacts
from cloud_jobs.billing.register.closer import ClosedPayer, ClosingFences, ClosingRun, blocked, closed, closing_fences
from cloud_jobs.billing.register.closing import Closing, ClosingNotes, ClosingState, Days, Parties
from cloud_jobs.billing.register.control_totals import (
    ControlTotal,
    MeteredRecords,
    RecordSums,
    assigned_usage,
    compare_records,
    control_totals,
    record_totals,
)
from cloud_jobs.billing.register.current_contracts import agreed_with, contract_digest, program_fault
from cloud_jobs.billing.register.errors import NoPayer
from cloud_jobs.billing.register.facts_at import read_facts, sells_facts, unseen_visits
from cloud_jobs.billing.register.ledger import Ledger
from cloud_jobs.billing.register.operations import commit_to
from cloud_jobs.billing.register.tables import (
    Register,
    certificate_rows,
    charge_columns,
    charge_rows,
    closing_row,
    digest_of,
    lines_digest,
    taxes_text,
)
from cloud_jobs.billing.units import Meter
from cloud_jobs.errors import LakeError, StoreUnavailable
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.data_files import DataFile, write_data_files
from cloud_jobs.lake.schemas import TABLES
from cloud_jobs.lake.snapshot_reads import (
    DeviceFilter,
    miscounted,
    reference_rows,
    usage_rows,
    usage_rows_each,
    used_devices,
)
from cloud_jobs.lake.snapshots import LakeState, Snapshot
from cloud_jobs.lake.tables import Lake, row_fault_as_error

# Pauses Python's garbage collector while many objects without cycles are created.


@contextmanager
def gc_disabled() -> Iterator[None]:
    """Pauses the garbage collector for work that creates many objects without cycles.

    A cycle that the block creates is kept until the block ends.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


# Groups of payers for one task: neighbours by device, so that a group reads few files.

DEVICES_AT_ONCE: Final = 12_000
"""The most devices read at once, and about the size of a group, whose charges are held in memory."""
_ROWS_AT_ONCE: Final = 260_000
"""Usage rows read at once: about 80 MB."""
_LEAST_DEVICES: Final = 100
_EACH_PAYER: Final = 5
"""The cost of a payer, in devices."""
_Payer = TypeVar("_Payer")


def payer_groups(contracts: Sequence[PayerContract], tasks: int) -> list[list[PayerContract]]:
    """About `tasks` groups of payers: more if there are many devices, one if there are few."""
    # usage lies in the order of devices, so neighbours are in the same files
    in_order = sorted(contracts, key=lambda one: (one.assigned[:1], one.id))
    return _grouped([(one, len(one.assigned)) for one in in_order], tasks)


def _grouped(payers: Sequence[tuple[_Payer, int]], tasks: int) -> list[list[_Payer]]:
    """Groups of payers in order, each with the number of its devices."""
    weights = [devices + _EACH_PAYER for _, devices in payers]
    most = min(max(sum(weights) // max(tasks, 1), _LEAST_DEVICES), DEVICES_AT_ONCE)
    groups: list[list[_Payer]] = []
    # the first payer opens the first group
    held = most
    for (payer, _), weight in zip(payers, weights, strict=True):
        if held + weight > most:
            groups.append([])
            held = 0
        groups[-1].append(payer)
        held += weight
    return groups


def device_parts(contracts: Sequence[PayerContract], rows_each: int = 0) -> Iterator[list[TenantDevice]]:
    """The distinct devices of some payers, in parts whose rows fit in memory. `rows_each`: rows of one device."""
    devices = sorted({device for contract in contracts for device in contract.devices})
    # few parts, because each opens every file that may have rows of it
    at_once = min(DEVICES_AT_ONCE, max(_ROWS_AT_ONCE // max(rows_each, 1), 1))
    for begin in range(0, len(devices), at_once):
        yield devices[begin : begin + at_once]


class UsagePart(NamedTuple):
    """Usage rows of some devices, with the payers of all of them, sorted, and of each. `span`: first and last
    moment.
    """

    devices: list[TenantDevice]
    payers: list[str]
    payers_of: Mapping[TenantDevice, list[str]]
    span: tuple[datetime, datetime]
    rows: pa.Table


def usage_parts(
    lake: Lake, state: LakeState, contracts: Sequence[PayerContract], columns: Sequence[str]
) -> Iterator[UsagePart]:
    """The usage of some payers' devices in all their periods, part by part."""
    # a device may have several payers in one period, one after the other
    payers_of: dict[TenantDevice, list[str]] = defaultdict(list)
    for one in contracts:
        for device in one.devices:
            payers_of[device].append(one.id)
    # covers payers of all time zones; rating cuts the rows to each payer's days
    first = min(one.period.start for one in contracts)
    last = max(one.period.end for one in contracts) - timedelta.resolution
    for devices in device_parts(contracts, usage_rows_each(lake, state, first, last)):
        payers = sorted({payer for device in devices for payer in payers_of[device]})
        rows = usage_rows(lake, state, devices, first, last, columns=columns)
        yield UsagePart(devices, payers, payers_of, (first, last), rows)


# Payers that were closed for these days, but no longer pay for any of them: they owe nothing.


def closed_former(register: Register, run: ClosingRun, days: Days, payers: Collection[str]) -> dict[str, ClosedPayer]:
    """Closings of nothing for former payers, by payer. Raises LakeError, RegisterDamaged."""
    if not payers:
        return {}
    ledger = Ledger(register.documents(payers, first_day=days[0], last_day=days[1]))
    # in the order of payers and ranks
    return {
        payer: closed_empty(run, _last_charged(ledger, days, payer, [*closings]))
        for payer, closings in groupby(register.closings(*days, payers), key=lambda one: one.key.payer)
    }


def _last_charged(ledger: Ledger, days: Days, payer: str, closings: Sequence[Closing]) -> Closing:
    """The closing to take back: the posted one, else the newest that is not blocked, else the newest."""
    charged = [one for one in closings if one.outcome is not ClosingState.BLOCKED]
    posted = [
        one.closing for one in ledger.standing(payer) if (one.invoice.key.first_day, one.invoice.key.last_day) == days
    ]
    return next((one for one in charged if one.id in posted), (charged or closings)[-1])


def closed_empty(run: ClosingRun, posted: Closing) -> ClosedPayer:
    """The closing of a former payer: nothing is owed, under the terms of the posted closing.

    It is final, because the completeness of the devices concerns whoever pays for them now.
    """
    nothing = charge_columns(())
    closing = replace(
        posted,
        snapshot=run.snapshot,
        snapshot_id=run.snapshot_id,
        number=0,
        run=run.name,
        outcome=ClosingState.FINAL,
        reasons=(),
        net_minor=0,
        tax_minor=0,
        rounding_minor=0,
        charges=0,
        taxes=taxes_text(()),
        lines_digest=lines_digest(nothing),
        body_digest="",
        certificates_digest=digest_of(canonical_text([])),
        control_totals=canonical_text([]),
        parties=_without_devices(posted),
        decisions=(),
    )
    return ClosedPayer(closing=closing, charges=nothing, certificates=())


def _without_devices(closing: Closing) -> str:
    if closing.parties == canonical_text({}):
        # a blocked closing; its seller may be unknown
        return closing.parties
    with row_fault_as_error("closings", {"payer": closing.key.payer, "parties": closing.parties}):
        parties = Parties.parse(closing.parties)
    return replace(parties, names={}, devices_by_state={}, noticed=ClosingNotes()).text


RECORDS_COLUMNS: Final = ("seq_ranges", "day")
"""Columns that `compare_records` needs in addition to `rated_columns`."""
_WITHIN: Final = timedelta(days=2)
"""The largest distance of a local day from the same day in UTC."""
_MAX_UNBILLED: Final = 5


class ClosedGroup(NamedTuple):
    """The result of a task: closings (their numbers are still 0) and the files that it wrote."""

    closings: list[Closing]
    lines: list[DataFile]
    certificates: list[DataFile]


Work = Callable[[Sequence[PayerContract]], ClosedGroup]
RunTasks = Callable[[Work, Iterable[Sequence[PayerContract]]], Sequence[ClosedGroup]]
"""Runs a function on each group, here or on executors, while later groups are made."""
TakeDevices = Callable[[Sequence[TenantDevice]], None]


@dataclass(slots=True)
class _Used:
    """The usage of a payer's devices, added up over parts of them. `charges`: instead of cells, if one part has all.
    `open_ends`: why earlier periods are not final.
    """

    cells: list[Cell] = field(default_factory=list)
    metered: dict[MeteredKey, MeteredRows] = field(default_factory=dict)
    charges: UsageCharges = field(default_factory=dict)
    quantities: Counter[tuple[str, int, Meter]] = field(default_factory=Counter)
    assigned: Counter[tuple[str, Meter]] = field(default_factory=Counter)
    records: RecordSums = field(default_factory=RecordSums)
    facts: dict[TenantDevice, DeviceFacts] = field(default_factory=dict)
    certificates: dict[TenantDevice, DeviceCertificate] = field(default_factory=dict)
    earlier: list[PeriodUsage] = field(default_factory=list)
    open_ends: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class UsageReader:
    """Reads the usage and facts of payers' devices at a snapshot, and compares the usage with the records."""

    lake: Lake
    snapshot: LakeState
    against_records: bool = True
    certifies: bool = True
    miscounted: Mapping[TenantDevice, tuple[int, int]] = field(default_factory=dict)

    def read(self, contracts: Sequence[PayerContract], books: PriceBooks | None = None) -> dict[str, _Used]:
        """The usage and certificates of each payer's devices.

        `books`: usage is charged in columns where that is possible. Raises BillingError if the usage of any of them
        cannot be rated.
        """
        used = {one.id: _Used() for one in contracts}
        columns = (*rated_columns(contracts), *OBSERVED_COLUMNS)
        agreed = {one.id: one for one in contracts}
        columns += RECORDS_COLUMNS if self.against_records else ()
        for part in usage_parts(self.lake, self.snapshot, contracts, [*dict.fromkeys(columns)]):
            of_part = [agreed[name] for name in part.payers]
            _add_cells(used, of_part, part, books)
            for name, sums in assigned_usage(of_part, part.rows).items():
                used[name].assigned.update(sums)
            if self.against_records:
                compared = compare_records(self.lake, self.snapshot, part.devices, part.rows, part.span)
                _add_records(used, part.payers_of, compared)
            if selling := [one for one in of_part if sells_facts(one)]:
                facts = {one.id: used[one.id].facts for one in selling}
                read_facts(self.lake, self.snapshot, facts, contracts=selling, devices=part.devices, usage=part.rows)
            if self.certifies:
                self._certify(used, agreed, part)
        # hardly any payer has earlier periods in its contract
        for turn in zip_longest(*(one.earlier for one in contracts)):
            of_turn = [one for one in turn if one is not None]
            for one, its in zip(of_turn, replace(self, against_records=False).read(of_turn).values(), strict=True):
                used[one.id].earlier.append(PeriodUsage(its.cells, its.metered, its.facts))
                reasons = (f"{of.tenant}/{of.device}: {why}" for of in its.certificates.values() for why in of.reasons)
                used[one.id].open_ends += (f"{one.period}: {reason}" for reason in reasons)
        return used

    def _certify(self, used: Mapping[str, _Used], agreed: Mapping[str, PayerContract], part: UsagePart) -> None:
        """The certificate of each payer's device for the time in which the device is the payer's."""
        # one pass for each payer that a device has in turn
        for turn in range(max(len(part.payers_of[device]) for device in part.devices)):
            asked = {
                device: agreed[part.payers_of[device][turn]]
                for device in part.devices
                if turn < len(part.payers_of[device])
            }
            spans = {device: payer.spans[device] for device, payer in asked.items()}
            bounds = {device: payer.payer.doubts for device, payer in asked.items()}
            made = certificates_of_spans(self.lake, self.snapshot, spans, bounds, part.rows)
            for device, one in made.items():
                used[asked[device].id].certificates[device] = one


def _add_cells(
    used: Mapping[str, _Used], of_part: Sequence[PayerContract], part: UsagePart, books: PriceBooks | None
) -> None:
    cells, known = cell_columns(of_part, part.rows), {*part.devices}
    made = {} if books is None else charges_in_columns(of_part, cells, books)
    # pools of an account need all of its devices
    charged = {at: charges for at, charges in made.items() if known.issuperset(of_part[at].devices)}
    by_cell = np.array([at not in charged for at in range(len(of_part))], np.bool_)
    sums, found = cells.sums(len(of_part)), cells.of_payers(by_cell)
    for at, name in enumerate(part.payers):
        its = used[name]
        its.charges = charged.get(at, {})
        its.cells += found[at].cells
        its.metered.update(found[at].metered)
        its.quantities.update(sums[at])


def _add_records(used: Mapping[str, _Used], payers_of: Mapping[TenantDevice, list[str]], made: MeteredRecords) -> None:
    for device, (recorded, metered) in made.records_of().items():
        for payer in payers_of[device]:
            used[payer].records.recorded += recorded
            used[payer].records.metered += metered
    for one in made.differences:
        for payer in payers_of[one.device]:
            used[payer].records.differences.append(one)


def run_here(work: Work, groups: Iterable[Sequence[PayerContract]]) -> Sequence[ClosedGroup]:
    """Runs the groups in this process, one after the other."""
    return [work(group) for group in groups]


def close_period(
    lake: Lake,
    snapshot: Snapshot,
    days: Days,
    payers: Collection[str] | None,
    *,
    run: ClosingRun,
    run_tasks: RunTasks = run_here,
    tasks: int = 1,
    against_records: bool = True,
    unbilled: TakeDevices | None = None,
) -> list[Closing]:
    """Closes local days of some payers, or of all; returns the closings by payer.

    `against_records`: False leaves out the comparison with records, for benchmarks of a lake that has usage alone.
    `unbilled`: receives the devices with usage in these days that no billable account has, when all payers are closed.

    Raises UnknownPayer for a requested account that never pays; NoPayer if no account pays for these days; BadPeriod,
    LakeError, CommitConflict, CommitFailed, StoreUnavailable. After an error nothing is closed.
    """
    due, fences, found = _Due(lake, snapshot, days, payers, run), closing_fences(lake, snapshot), list[TenantDevice]()

    def groups() -> Iterator[list[PayerContract]]:
        yield from due.groups(tasks)
        if unbilled is not None and payers is None:
            found.extend(unbilled_devices(lake, snapshot, days, due.contracts, due.later))

    # tasks run while the contracts of later groups are resolved
    with gc_disabled():
        made = run_tasks(close_group(lake, snapshot, run, fences, against_records=against_records), groups())
    if not due.contracts and not due.refused:
        raise NoPayer(days_text(*days))
    closings = [*(one.closing for one in due.refused), *(one for group in made for one in group.closings)]
    # so the files of two runs are alike, whichever task ended first
    closings.sort(key=lambda one: one.key.payer)
    # before the closings: a crash in between leaves rows that no closing names
    commit_to(lake, "rated_lines", lambda *_: [file for group in made for file in group.lines])
    commit_to(lake, "certificates", lambda *_: [file for group in made for file in group.certificates])

    def files(_: DeltaTable, counter: int) -> list[DataFile]:
        # the rows contain the number of the commit, so a repeated attempt writes new files
        rows = [closing_row(replace(one, number=counter), run.now) for one in closings]
        return _written(lake, "closings", pa.Table.from_pylist(rows, schema=TABLES["closings"].schema), run.now)

    # this commit makes the run valid
    commit_to(lake, "closings", files)
    if unbilled is not None and found:
        unbilled(found)
    return closings


def unbilled_devices(
    lake: Lake,
    snapshot: LakeState,
    days: Days,
    contracts: Sequence[PayerContract],
    later: Collection[TenantDevice] = (),
) -> list[TenantDevice]:
    """The devices with usage in these days that no closed payer has on any of them. `later`: of longer cycles."""
    periods = [one.period for one in contracts] or [BillingPeriod("UTC", *days)]
    start, end = min(one.start for one in periods), max(one.end for one in periods)
    used = used_devices(lake, snapshot, start, end)
    billed = DeviceFilter({device for one in contracts for device in one.devices} | {*later})
    unknown = used.filter(pa.array(~billed.mask(used)))
    return sorted(map(TenantDevice, unknown["tenant"].to_pylist(), unknown["device"].to_pylist()))


def unbilled_text(devices: Sequence[TenantDevice]) -> str:
    names = [f"{one.tenant}/{one.device}" for one in devices[:_MAX_UNBILLED]]
    names += [f"and {len(devices) - _MAX_UNBILLED:,} more"] if len(devices) > _MAX_UNBILLED else []
    return f"usage without an account in this period: {', '.join(names)}; `waybill reconcile` shows the amount"


class DuePayers(NamedTuple):
    """`refused`: closings of payers without a contract. `later`: the devices of payers whose cycle is longer."""

    contracts: list[PayerContract]
    refused: list[ClosedPayer]
    later: set[TenantDevice]


def contracts_of(
    lake: Lake, snapshot: LakeState, days: Days, payers: Collection[str] | None, run: ClosingRun
) -> DuePayers:
    """The contracts of payers for their local days, and blocked closings of those without one.

    If all payers are asked, those of which these days are a part of a period are left out. Accounts that were closed
    for these days and no longer pay get a closing of nothing. Raises BadPeriod for days that exist in no time zone,
    UnknownPayer.
    """
    due = _Due(lake, snapshot, days, payers, run)
    contracts = [one for group in due.groups(tasks=1) for one in group]
    return DuePayers(sorted(contracts, key=lambda one: one.id), due.refused, due.later)


class _Due:
    """`contracts_of`, group by group. `contracts`: those of the groups made; the rest is known with the last one."""

    def __init__(
        self, lake: Lake, snapshot: LakeState, days: Days, payers: Collection[str] | None, run: ClosingRun
    ) -> None:
        # invalid in every time zone, so no payer's fault
        BillingPeriod("UTC", *days)
        self._days, self._asked, self._run, self._register = days, payers, run, Register(lake)
        with gc_disabled():
            self._all = Contracts(reference_rows(lake, snapshot))
        self._before = {*self._register.payers(*days)}
        self._names = {*payers} if payers is not None else {*_paying(self._all, days), *self._before}
        self.contracts, self.refused, self.later = list[PayerContract](), list[ClosedPayer](), set[TenantDevice]()

    def groups(self, tasks: int) -> Iterator[list[PayerContract]]:
        """Groups for tasks: neighbours by device. Raises UnknownPayer before the last one."""
        groups, without = _grouped(self._all.by_first_device(self._names), tasks), dict[str, BillingError]()
        for number, names in enumerate(groups, 1):
            agreed = {name: agreed_with(self._all, name, self._days) for name in names}
            without |= {name: fault for name, fault in agreed.items() if not isinstance(fault, PayerContract)}
            if number == len(groups):
                self._refuse(dict(sorted(without.items())))
            if made := [one for one in agreed.values() if isinstance(one, PayerContract)]:
                self.contracts += made
                yield made

    def _refuse(self, without: Mapping[str, BillingError]) -> None:
        """Takes the payers without a contract, and why."""
        contracts, run, days, payers = self._all, self._run, self._days, self._asked
        nothing, refused = set[str](), dict[str, ClosedPayer]()
        for payer, fault in without.items():
            zone = contracts.zone_of_account(payer)
            if payers is None and payer not in self._before and _is_due_later(fault):
                self.later |= contracts.devices_paid_for(payer, BillingPeriod(zone, *days))
            elif isinstance(fault, BadPeriod):
                refused[payer] = blocked(run, payer, days, zone, [str(fault)])
            elif not _pays_nothing(fault):
                assert isinstance(fault, BlockedPayer)
                refused[payer] = blocked(run, payer, days, zone, [str(one) for one in fault.faults])
            elif nowhere := contracts.way_up(payer, BillingPeriod(zone, *days).end - timedelta.resolution):
                # nobody else pays, so its invoice is not taken back
                refused[payer] = blocked(run, payer, days, zone, [str(nowhere)])
            else:
                nothing.add(payer)
        taken_back = closed_former(self._register, run, days, nothing & self._before)
        for payer in nothing - taken_back.keys() if payers is not None else ():
            # requested explicitly
            fault = without[payer]
            if not isinstance(fault, BlockedPayer):
                raise fault
            zone = contracts.zone_of_account(payer)
            refused[payer] = blocked(run, payer, days, zone, [str(one) for one in fault.faults])
        self.refused = [
            replace(one, closing=replace(one.closing, contract_digest=contract_digest(without[name])))
            for name, one in (refused | taken_back).items()
        ]


def _pays_nothing(fault: BillingError) -> bool:
    """Whether the only fault is that the account pays for none of the days."""
    faults = fault.faults if isinstance(fault, BlockedPayer) else [fault]
    return all(isinstance(one, UnknownPayer) for one in faults)


def _is_due_later(fault: BillingError) -> bool:
    faults = fault.faults if isinstance(fault, BlockedPayer) else ()
    return any(isinstance(one, OtherCycle) and one.is_part for one in faults)


def close_group(
    lake: Lake, snapshot: Snapshot, run: ClosingRun, fences: ClosingFences, *, against_records: bool = True
) -> Work:
    """The function that closes a group of payers and writes its lines and certificates."""
    wrong = miscounted(lake, snapshot) if against_records else {}
    reader = UsageReader(lake, snapshot, against_records=against_records, miscounted=wrong)

    def work(contracts: Sequence[PayerContract]) -> ClosedGroup:
        # with millions of objects, garbage collection would take a fifth of the time
        with gc_disabled():
            made = [closing_of(one, run, fences) for one in rate_payers(reader, contracts)]
            lines = charge_rows(run.name, [(one.closing.key, one.charges) for one in made])
            certificates = certificate_rows(run.name, [(one.closing.key, one.certificates) for one in made])
        return ClosedGroup(
            [one.closing for one in made],
            _written(lake, "rated_lines", lines, run.now),
            _written(lake, "certificates", certificates, run.now),
        )

    return work


class RatedPayer(NamedTuple):
    """The charges of a payer, the certificates of its devices, the control totals, the visits that were not seen whole,
    and why earlier periods on which it depends are not final.
    """

    contract: PayerContract
    rated: RatedAccount
    certificates: Sequence[DeviceCertificate]
    totals: Sequence[ControlTotal]
    unseen: Mapping[str, int] = MappingProxyType({})
    open_ends: Sequence[str] = ()


class UnratedPayer(NamedTuple):
    """A payer whose usage cannot be rated, and why."""

    contract: PayerContract
    reason: str


def closing_of(one: RatedPayer | UnratedPayer, run: ClosingRun, fences: ClosingFences) -> ClosedPayer:
    if isinstance(one, RatedPayer):
        return closed(run, *one[:3], totals=one.totals, fences=fences, unseen=one.unseen, open_ends=one.open_ends)
    contract = one.contract
    days = contract.period.first_day, contract.period.last_day
    return blocked(run, contract.id, days, contract.period.time_zone, [one.reason], contract=contract)


def rate_payers(reader: UsageReader, contracts: Sequence[PayerContract]) -> Iterator[RatedPayer | UnratedPayer]:
    """Rates the usage of each payer at the reader's state of the lake. A fault of one payer affects no other, also one
    of this program.

    Raises LakeError, StoreUnavailable.
    """
    used, books = dict[str, _Used](), PriceBooks()
    try:
        used = reader.read(contracts, books)
    except _OF_ALL_PAYERS:
        raise
    except Exception as fault:  # noqa: BLE001, one payer is at fault, so each is read by itself
        if len(contracts) == 1:
            yield UnratedPayer(
                contracts[0], str(fault) if isinstance(fault, BillingError) else program_fault(contracts[0].id, fault)
            )
            return
    for one in contracts:
        if one.id not in used:
            yield from rate_payers(reader, [one])
            continue
        try:
            yield _rated(reader, one, used[one.id], books)
        except _OF_ALL_PAYERS:
            raise
        except Exception as fault:  # noqa: BLE001
            yield UnratedPayer(one, str(fault) if isinstance(fault, BillingError) else program_fault(one.id, fault))


_OF_ALL_PAYERS: Final = (LakeError, StoreUnavailable, OSError, MemoryError)
"""What is no payer's fault."""


def _rated(reader: UsageReader, one: PayerContract, its: _Used, books: PriceBooks) -> RatedPayer:
    rated = rate(one, its.cells, its.metered, books, its.facts, earlier=its.earlier, usage_charges=its.charges)
    totals = control_totals(one, its.assigned, its.quantities, rated)
    if reader.against_records:
        wrong = {device: reader.miscounted[device] for device in one.devices if device in reader.miscounted}
        totals = (*record_totals(one.id, its.records, wrong), *totals)
    certificates = [its.certificates[device] for device in one.devices] if reader.certifies else []
    return RatedPayer(one, rated, certificates, totals, unseen_visits(one, its.facts), its.open_ends)


def _paying(contracts: Contracts, days: Days) -> list[str]:
    first, last = (datetime.combine(day, time(), UTC) for day in days)
    return contracts.payers(first - _WITHIN, last + _WITHIN)


def _written(lake: Lake, table: str, rows: pa.Table, now: datetime) -> list[DataFile]:
    return write_data_files(lake.files(table), rows, now, table=table)
