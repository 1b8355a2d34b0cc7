"""Observers of the lake: the table `records`, usage, and the amount due."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from typing import Any, Final, NamedTuple

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from cloud_jobs.billing.billing_period import BillingPeriod
from cloud_jobs.billing.contracts import Contracts
from cloud_jobs.billing.errors import BillingError
from cloud_jobs.billing.rating import cells_of_usage, rate, rated_columns
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.data_files import StoredFiles, read_stored
from cloud_jobs.lake.snapshot_reads import reference_rows, usage_rows
from cloud_jobs.lake.snapshots import LakeState, newest_state
from cloud_jobs.lake.tables import INGEST, Lake
from cloud_jobs.lake.transactions import counter_of, newest_number
from gateway.canary.config import CANARY_RECORD, POSITION, QUARTER_MS, Hop, ProbeItem
from gateway.canary.probes import SentProbes
from gateway.canary.reference import bill_fault
from gateway.canary.watch import CanaryWatch, Observer, RecordOfProbe

_TABLE: Final = "records"
_NUMBER: Final = "ingest_number"
_COLUMNS: Final = ("kind", "device_time", "epoch", "seq", "latitude", "longitude", "name", _NUMBER)


class StoredRecord(NamedTuple):
    """A record of the table, and the ingest commit that added it."""

    record: RecordOfProbe
    ingest_number: int


class DeviceRecords:
    """The rows of one device in `records` since a moment. Each ingest commit is read once."""

    def __init__(self, lake: Lake, device: TenantDevice, since: datetime) -> None:
        self._lake, self._since = lake, since.astimezone(UTC)
        self._device = {"tenant": (device.tenant,) * 2, "device": (device.device,) * 2}
        self._opened: DeltaTable | None = None
        self._through = 0

    def read_new(self) -> list[StoredRecord]:
        """The rows committed since the last call. Raises LakeError, StoreUnavailable."""
        with self._lake.damage_as_error(_TABLE):
            opened = self._newest()
            newest = counter_of(newest_number(opened, INGEST))
            if newest <= self._through:
                return []
            numbers = (self._through + 1, newest)
            stored = StoredFiles.of(opened, _TABLE).of_days(self._since.date()).between(_NUMBER, *numbers)
            ranges = {**self._device, _NUMBER: numbers}
            files, rows = self._lake.files(_TABLE), list[dict[str, Any]]()
            for path in stored.paths:
                rows += read_stored(files, _TABLE, path, [*_COLUMNS], ranges).to_pylist()
            self._through = newest
            return [_stored(row) for row in rows if row["device_time"] >= self._since]

    def _newest(self) -> DeltaTable:
        if self._opened is not None:
            try:
                self._opened.update_incremental()
            except DeltaError:
                # its log may have been truncated since
                self._opened = None
        if self._opened is None:
            self._opened = self._lake.open(_TABLE)
        return self._opened


def _stored(row: dict[str, Any]) -> StoredRecord:
    item = ProbeItem(row["kind"], round(row["device_time"].timestamp() * 1000))
    place = None if row["latitude"] is None else (row["latitude"], row["longitude"])
    return StoredRecord(RecordOfProbe(item, row["epoch"], row["seq"], place, row["name"] or ""), row["ingest_number"])


def device_of(watch: CanaryWatch) -> TenantDevice:
    return TenantDevice(watch.settings.tenant, watch.settings.device)


def observed_since(watch: CanaryWatch) -> datetime:
    """The begin of the previous quarter of an hour."""
    now = datetime.fromtimestamp(watch.clock(), UTC)
    return now.replace(minute=now.minute - now.minute % 15, second=0, microsecond=0) - timedelta(minutes=15)


class RecordsObserver(Observer):
    hops = (Hop.TABLE,)
    every_s = 1.0

    def __init__(self, watch: CanaryWatch) -> None:
        self._watch = watch
        self._records = DeviceRecords(watch.settings.tables, device_of(watch), observed_since(watch))

    def look(self) -> None:
        stored = [one.record for one in self._records.read_new()]
        self._watch.show_records(Hop.TABLE, [one for one in stored if one.item.name in {POSITION, CANARY_RECORD}])


# The observer of usage and charges.

# Expected usage of a quarter of an hour, from its probes. Pure.

TOLERANCE_MM: Final = 2
"""Per probe; a quarter is rounded once."""


class QuarterUsage(NamedTuple):
    """Usage of the canary in its fence in one quarter of an hour."""

    entries: int = 0
    distance_mm: int = 0


class ProbeCover(Enum):
    """How many of a probe's records are in the usage."""

    WHOLE = auto()
    PART = auto()
    """Some of its records: it may have come in already, and may have driven some of the way."""
    NOTHING = auto()


def covered(items: Sequence[ProbeItem], ingest_numbers: Mapping[ProbeItem, int], covers: int) -> ProbeCover:
    """How much of a probe is in a table that covers the ingest up to a commit."""
    there = sum(ingest_numbers.get(item, covers + 1) <= covers for item in items)
    if there == len(items):
        return ProbeCover.WHOLE
    return ProbeCover.PART if there else ProbeCover.NOTHING


def usage_fault(usage: QuarterUsage, probes: Iterable[ProbeCover], inside_mm: int, *, before: ProbeCover) -> str:
    """What is wrong with the usage of a quarter, or "".

    `probes`: the probes of the quarter, in order; `before`: the last one before it. A probe that is covered in part may
    have driven any part of its way. So may a missing one before a covered one: the vehicle went through the fence
    anyway.
    """
    states = [*probes]
    # later probes may not have come yet
    while states and states[-1] is ProbeCover.NOTHING:
        states.pop()
    whole = states.count(ProbeCover.WHOLE)
    perhaps = len(states) - whole + (bool(states) and before is not ProbeCover.WHOLE)
    most = whole + perhaps
    if not whole <= usage.entries <= most:
        return f"{usage.entries} entries, and {_span(whole, most)} probes came in"
    low, high = whole * (inside_mm - TOLERANCE_MM), most * (inside_mm + TOLERANCE_MM)
    if not low <= usage.distance_mm <= high:
        wanted = _span(whole * inside_mm, most * inside_mm)
        return f"{usage.distance_mm} mm inside, and {wanted} mm were driven"
    return ""


def _span(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"


_KEY: Final = ("tenant", "device", "hour", "zone", "commit_number")
_QUARTERS_AT_ONCE: Final = 8
_QUARTERS_OF_HOUR: Final = 4
_TIME_ZONE: Final = "UTC"
_MOST_PROBES: Final = 1_000
_STANDING_S: Final = 300
"""`tracks.max_gap_s`: after a longer pause the track begins again."""


class MoneyObserver(Observer):
    """Checks the usage of the quarter of each waiting probe, and the amount due for its month."""

    hops = (Hop.USAGE, Hop.RATED)
    every_s = 2.0

    def __init__(self, watch: CanaryWatch, sent: SentProbes) -> None:
        self._watch, self._sent, self._script = watch, sent, watch.script
        self._lake, self._device = watch.settings.tables, device_of(watch)
        self._records = DeviceRecords(self._lake, self._device, observed_since(watch))
        self._numbers_of: OrderedDict[int, dict[ProbeItem, int]] = OrderedDict()
        self._known: str = ""

    def look(self) -> None:
        with self._watch.ledger() as ledger:
            for number in ledger.numbers:
                if self._sent.is_unknown(self._script.quarter_of(number)):
                    ledger.cannot_know(number, Hop.USAGE, "a probe of this quarter of an hour was cut")
            waiting = sorted({*ledger.waiting(Hop.USAGE), *ledger.waiting(Hop.RATED)})
        if not waiting:
            return
        state = newest_state(self._lake)
        # after the state, so that these include all records that it covers
        self._take(self._records.read_new())
        # the same lake gives the same bill
        if state.digest() == self._known:
            return
        whole = [number for number in waiting if self._covered(number, state.covers) is ProbeCover.WHOLE]
        self._look_at_usage(state, waiting)
        self._look_at_bills(state, whole)
        # after both, so that a failed one is repeated with the same state
        self._known = state.digest()

    def _take(self, stored: Iterable[StoredRecord]) -> None:
        for one in stored:
            number = self._script.number_at(one.record.item.t_ms)
            known = self._numbers_of.setdefault(number, {})
            known[one.record.item] = min(one.ingest_number, known.get(one.record.item, one.ingest_number))
        while len(self._numbers_of) > _MOST_PROBES:
            self._numbers_of.popitem(last=False)

    def _covered(self, number: int, covers: int) -> ProbeCover:
        return covered(self._watch.record_items(number), self._numbers_of.get(number, {}), covers)

    def _look_at_usage(self, state: LakeState, waiting: Iterable[int]) -> None:
        quarters = sorted({self._script.quarter_of(number) for number in waiting})[-_QUARTERS_AT_ONCE:]
        if not quarters:
            return
        found = self._usage(state, quarters)
        for quarter in quarters:
            self._judge_quarter(quarter, found.get(quarter, QuarterUsage()), state.covers)

    def _judge_quarter(self, quarter: int, usage: QuarterUsage, covers: int) -> None:
        if self._sent.is_unknown(quarter):
            return
        begun = self._sent.begun(quarter)
        numbers = [*self._sent.whole(quarter), *([] if begun is None else [begun])]
        states = {number: self._covered(number, covers) for number in numbers}
        fault = usage_fault(usage, states.values(), self._script.inside_mm, before=self._before(quarter, covers))
        for number, state in states.items():
            # usage does not cover this probe yet
            if state is ProbeCover.NOTHING:
                continue
            with self._watch.ledger() as ledger:
                ledger.judge(number, Hop.USAGE, fault)
            if not fault and state is ProbeCover.WHOLE:
                self._watch.show(number, Hop.USAGE, self._script.items(number)[Hop.USAGE])

    def _before(self, quarter: int, covers: int) -> ProbeCover:
        """The cover of the last probe before a quarter, if the vehicle comes from there."""
        before = self._sent.whole(quarter - 1)
        if not before:
            return ProbeCover.WHOLE
        ends_ms = self._script.begins_ms(before[-1]) + self._script.driven_ms
        if quarter * QUARTER_MS - ends_ms > _STANDING_S * 1000:
            return ProbeCover.WHOLE
        return self._covered(before[-1], covers)

    def _usage(self, state: LakeState, quarters: list[int]) -> dict[int, QuarterUsage]:
        first, last = _moment(quarters[0]), _moment(quarters[-1] + 1) - timedelta.resolution
        columns = (*_KEY, "entries", "distance_mm")
        rows = usage_rows(self._lake, state, [self._device], first, last, columns=columns).to_pylist()
        found: dict[int, QuarterUsage] = {}
        for row in rows:
            if row["zone"] == self._watch.settings.name:
                hour = round(row["hour"].timestamp()) // 3600
                for at in range(_QUARTERS_OF_HOUR):
                    of = QuarterUsage(row["entries"][at], row["distance_mm"][at])
                    found[hour * _QUARTERS_OF_HOUR + at] = of
        return found

    def _look_at_bills(self, state: LakeState, whole: Iterable[int]) -> None:
        of_month: dict[str, list[int]] = {}
        for number in whole:
            begins = datetime.fromtimestamp(self._script.begins_ms(number) / 1000, UTC)
            of_month.setdefault(f"{begins:%Y-%m}", []).append(number)
        for month, numbers in of_month.items():
            fault = self._bill_fault(state, BillingPeriod.parse(month, _TIME_ZONE))
            for number in numbers:
                with self._watch.ledger() as ledger:
                    ledger.judge(number, Hop.RATED, fault)
                    is_short = ledger.is_short(number, Hop.USAGE)
                # a bill without the entry of a probe says nothing about that probe
                if not fault and not is_short:
                    self._watch.show(number, Hop.RATED, self._script.items(number)[Hop.RATED])

    def _bill_fault(self, state: LakeState, period: BillingPeriod) -> str:
        """How the amount due for a month differs from the price of its entries, or ""."""
        name = self._watch.settings.name
        last = period.end - timedelta.resolution
        try:
            contract = Contracts(reference_rows(self._lake, state, ids=[name])).contract_of(name, period)
            columns = rated_columns([contract])
            rows = usage_rows(self._lake, state, [self._device], period.start, last, columns=columns)
            (used,) = cells_of_usage([contract], rows)
            owed = rate(contract, used.cells, used.metered)
        except BillingError as error:
            return f"nothing can be rated: {error}"
        entries = sum(sum(row["entries"]) for row in rows.to_pylist() if row["zone"] == name)
        return bill_fault(entries, owed.net_minor, owed.tax_minor, contract.payer.currency)


def _moment(quarter: int) -> datetime:
    return datetime.fromtimestamp(quarter * QUARTER_MS / 1000, UTC)
