"""What the console reads of the register: closings, documents and explained lines, and who may see which of them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow.compute as pc

from cloud_jobs.billing.billing_period import BillingPeriod
from cloud_jobs.billing.errors import BadPeriod
from cloud_jobs.billing.register.closing import Closing, Days
from cloud_jobs.billing.register.documents_of import IssuedAgain, issued_again
from cloud_jobs.billing.register.errors import UnknownDocument
from cloud_jobs.billing.register.ledger import IssuedDocument
from cloud_jobs.billing.register.payments import balances
from cloud_jobs.billing.register.tables import Register, closing_from, document_from
from cloud_jobs.errors import LakeError
from cloud_jobs.explain.issued_line import ExplainedLine, explain_line, records_of_hour
from cloud_jobs.explain.metered_again import TrackBox, ids_near
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.schemas import TABLES
from cloud_jobs.lake.snapshot_reads import publications, reference_table
from cloud_jobs.lake.tables import Condition, row_fault_as_error
from cloud_jobs.maintenance.erasing import log_access
from console.errors import BadQuery, NotThere
from console.reference import FenceVersion, fence_versions

if TYPE_CHECKING:
    from console.context import Console, Viewer

RECENT: Final = timedelta(days=400)
"""Without a period, bills are shown whose last day lies at most so long before the newest one."""
MAX_RECORDS: Final = 4_000
"""The most records of an hour that are read for a page."""
MAX_BORDERS: Final = 200
"""The most borders beside an hour outside all zones."""
_MAX_KEPT: Final = 4
_MAX_KEPT_CHARGES: Final = 20_000
_LARGE: Final = {"parties": "{}", "control_totals": "{}", "taxes": "[]"}
"""Columns of closings that a list leaves out, and what stands for them."""
_DOCUMENT_COLUMNS: Final = (
    *("legal_entity", "payer", "first_day", "last_day", "counter", "number", "type", "closing", "before", "currency"),
    *("time_zone", "snapshot", "closing_number", "net_minor", "tax_minor", "rounding_minor", "issued_at", "issue_date"),
    "due_date",
    *("reference_number", "reference_date", "by", "reason"),
)

Span = tuple[datetime, datetime | None]
"""From a moment until another (excluded); None: without an end."""


class ClosingRow(NamedTuple):
    """The newest closing of a period as its row. `earlier`: older closings of the same period."""

    row: Mapping[str, Any]
    earlier: int

    @property
    def days(self) -> Days:
        return self.row["first_day"], self.row["last_day"]

    def closing(self) -> Closing:
        """Raises LakeError for a row that no command can have written."""
        with row_fault_as_error("closings", dict(self.row)):
            return closing_from(self.row)


@dataclass(frozen=True, slots=True)
class HourEvidence:
    """What an hour of a charge was metered from.

    `records`: those of its ranges that may be shown, `withheld`: the others, which the account did not pay for.
    `count`: all of them. `borders`: the zone's versions that the hour met, as the snapshot has them.
    """

    records: tuple[dict[str, Any], ...]
    withheld: int
    count: int
    borders: tuple[FenceVersion, ...]


class BillReader:
    """Reads of the register, and the documents that were made again last. Any thread may use it.

    Reads raise LakeError, StoreUnavailable, RegisterDamaged; NotThere for what the viewer may not see.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self.register = Register(console.lake.lake)
        self._kept: OrderedDict[str, IssuedAgain] = OrderedDict()
        self._lock = threading.Lock()

    # Who may see a bill.

    def sees(self, viewer: Viewer, payer: str) -> bool:
        """Whether a viewer may see the bills of a payer.

        A viewer of tenants sees a payer named to him, or one whose accounts have devices of his tenants only.
        """
        if viewer.accounts is not None:
            return payer in viewer.accounts
        if viewer.tenants is None:
            return True
        tenants = self._tenants_by_payer().get(payer)
        return tenants is not None and bool(tenants) and tenants <= viewer.tenants

    def require_payer(self, viewer: Viewer, payer: str) -> None:
        """Raises NotThere, the same as for a payer that does not exist."""
        if not self.sees(viewer, payer):
            raise NotThere(f"there are no bills of {payer!r}, or you may not see them")

    def entry(self, viewer: Viewer, number: str) -> IssuedDocument:
        """The entry of a document. Raises NotThere, the same for one that does not exist."""
        refusal = NotThere(f"there is no document {number!r}, or you may not see it")
        if not self._console.lake.has("documents"):
            raise refusal
        try:
            entry, _ = self.register.document(number)
        except UnknownDocument:
            raise refusal from None
        if not self.sees(viewer, entry.key.payer):
            raise refusal
        return entry

    def _tenants_by_payer(self) -> dict[str, frozenset[str]]:
        """The tenants of all devices that the accounts of each payer ever had."""
        found: dict[str, set[str]] = {}
        for one in self._console.reference.state().accounts:
            account = one.account
            found.setdefault(account.parent or account.id, set()).update(each.tenant for each in account.devices)
        return {payer: frozenset(tenants) for payer, tenants in found.items()}

    # Closings and documents.

    def closings(self, days: Days | None, payer: str | None = None) -> list[ClosingRow]:
        """The newest closing of each payer and period, newest period first. `days`: those that a period overlaps.

        Without a payer, their parties, taxes and control totals are left out.
        """
        columns = tuple(name for name in TABLES["closings"].schema.names if payer is not None or name not in _LARGE)
        rows = [_LARGE | row for row in self._rows("closings", columns, days, payer)]
        newest: dict[tuple[Any, ...], ClosingRow] = {}
        for row in rows:
            key = row["legal_entity"], row["payer"], row["first_day"], row["last_day"]
            held = newest.get(key)
            rank = row["snapshot"], row["number"]
            is_newer = held is None or rank > (held.row["snapshot"], held.row["number"])
            newest[key] = ClosingRow(
                row if held is None or is_newer else held.row, 0 if held is None else held.earlier + 1
            )
        return sorted(newest.values(), key=lambda one: (-one.row["last_day"].toordinal(), one.row["payer"]))

    def documents(self, days: Days | None, payer: str | None = None) -> list[Mapping[str, Any]]:
        """The rows of documents whose period overlaps days, newest first."""
        rows = self._rows("documents", _DOCUMENT_COLUMNS, days, payer)
        return sorted(rows, key=lambda row: (row["issue_date"], row["legal_entity"], row["counter"]), reverse=True)

    def payments(self, rows: Sequence[Mapping[str, Any]], shown: int) -> dict[str, str]:
        """What is paid of the invoices of the first rows, by number; `rows`: with all notes of these invoices."""
        keys = {(row["payer"], row["first_day"]) for row in rows[:shown]}
        found = list[IssuedDocument]()
        for row in rows:
            if (row["payer"], row["first_day"]) in keys:
                # the table names a row that cannot be read
                with suppress(LakeError):
                    found.append(self.document(row))
        return {number: one.text for number, one in balances(self.register, found, self._console.now()).items()}

    @staticmethod
    def document(row: Mapping[str, Any]) -> IssuedDocument:
        """The entry of a row. Raises LakeError."""
        with row_fault_as_error("documents", dict(row)):
            return document_from(row)

    def _rows(self, table: str, columns: tuple[str, ...], days: Days | None, payer: str | None) -> list[dict[str, Any]]:
        lake = self._console.lake
        if not lake.has(table):
            return []
        where: list[Condition] = [] if payer is None else [("payer", "=", payer)]
        if days is not None:
            where += [("last_day", ">=", days[0]), ("first_day", "<=", days[1])]
        elif since := self._recent(table):
            where.append(("last_day", ">=", since))
        rows: list[dict[str, Any]] = lake.rows(table, columns, where=where).to_pylist()
        return rows

    def _recent(self, table: str) -> date | None:
        """The last days before this one are not recent; None: unknown, or nothing is stored."""
        bounds = self._console.lake.stored(table).bounds("last_day")
        known = [high for _, high in bounds if high is not None]
        return max(known) - RECENT if len(known) == len(bounds) and known else None

    def issued(self, number: str) -> IssuedAgain:
        """The document of a number, made again and held against its digest; what was made last is kept."""
        with self._lock:
            if (held := self._kept.get(number)) is not None:
                self._kept.move_to_end(number)
                return held
        made = issued_again(self.register, number)
        if sum(map(len, made.charges.values())) <= _MAX_KEPT_CHARGES:
            with self._lock:
                self._kept[number] = made
                while len(self._kept) > _MAX_KEPT:
                    self._kept.popitem(last=False)
        return made

    # Evidence.

    def explained(
        self, issued: IssuedAgain, line: int, device: TenantDevice, hours: Collection[datetime] | None
    ) -> ExplainedLine:
        """The charge of a device on a line; `hours`: those to compute again, None: all."""
        number = issued.document["invoice_number"]
        return explain_line(self.register, number, line, device, hours=hours, issued=issued)

    def evidence(self, viewer: Viewer, found: ExplainedLine, hour: datetime, page: str) -> HourEvidence:
        """The records and borders of an hour of a charge. The access is logged first, with `page` as its command."""
        key, lake = found.explanation.charge.key, self._console.lake.lake
        device = TenantDevice(key.tenant, key.device)
        [explained] = [one for one in found.explanation.hours if one.hour == hour]
        log, what = self._console.settings.privacy.access_log, {"document": found.number, "line": found.line}
        log_access(lake.location, log, page, device, viewer=viewer.name, **what, hour=hour)
        rows = [*records_of_hour(lake, device, explained, MAX_RECORDS)]
        paid = self.paid(viewer, key.account, device)
        shown = tuple(row for row in rows if is_within(row["device_time"], paid))
        borders = self._borders(found, hour, key.zone, shown)
        seen = None if key.zone else self._console.fences.ids(viewer, hour)
        if seen is not None:
            borders = tuple(one for one in borders if one.id in seen)
        return HourEvidence(shown, len(rows) - len(shown), explained.seq_ranges.count, borders[:MAX_BORDERS])

    def paid(self, viewer: Viewer, account: str, device: TenantDevice) -> tuple[Span, ...] | None:
        """When the account paid for a device, by the contracts of today; None: the viewer sees all accounts."""
        if viewer.accounts is None:
            return None
        return tuple(self._paid(account, device))

    def _paid(self, account: str, device: TenantDevice) -> Iterator[Span]:
        for version in self._console.reference.state().accounts:
            ends = [version.until, version.account.effective_until]
            for one in version.account.devices if version.account.id == account else ():
                if one.of_device == device:
                    begin = max(version.begin, one.begin)
                    yield begin, min((end for end in (*ends, one.end) if end is not None), default=None)

    def _borders(
        self, found: ExplainedLine, hour: datetime, zone: str, records: Iterable[Mapping[str, Any]]
    ) -> tuple[FenceVersion, ...]:
        """The versions of the zone, or of every fence near fixes outside all zones, in force at a time of the hour."""
        rows = reference_table(self._console.lake.lake, found.snapshot)
        rows = rows.filter(pc.equal(rows["kind"], "fence"))
        ids: set[str] = {zone}
        if not zone:
            box = _box(records)
            bodies = [*zip(rows["id"].to_pylist(), rows["body"].to_pylist(), strict=True)]
            ids = ids_near(bodies, box) if box is not None and bodies else set()
        versions, _ = fence_versions(publications(rows, ids=ids))
        return tuple(one for one in versions if meets(one, hour, hour + timedelta(hours=1)))


def _box(records: Iterable[Mapping[str, Any]]) -> TrackBox | None:
    """The box of all fixes; None without one, and across the antimeridian."""
    places = [(one["longitude"], one["latitude"]) for one in records if is_place(one["longitude"], one["latitude"])]
    if not places:
        return None
    longitudes, latitudes = np.array(places, np.float64).T
    return TrackBox.around(longitudes, latitudes)


def is_place(longitude: float | None, latitude: float | None, *, null_island_deg: float | None = None) -> bool:
    """Whether a position lies in the world, and not within so many degrees of 0°/0°."""
    if longitude is None or latitude is None or not (abs(longitude) <= 180 and abs(latitude) <= 90):
        return False
    return null_island_deg is None or max(abs(longitude), abs(latitude)) >= null_island_deg


def meets(version: FenceVersion, start: datetime, end: datetime) -> bool:
    """Whether a version is in force at any moment of [start, end)."""
    return (version.begin is None or version.begin < end) and (version.until is None or start < version.until)


def is_within(moment: datetime, spans: Iterable[Span] | None) -> bool:
    """Whether a moment lies in any of the spans; None: no limit."""
    return spans is None or any(begin <= moment and (end is None or moment < end) for begin, end in spans)


def days_asked(text: str) -> Days | None:
    """The days of a `period` parameter; None without one. Raises BadQuery."""
    if not text:
        return None
    try:
        period = BillingPeriod.parse(text, "UTC")
    except BadPeriod as error:
        raise BadQuery("period", str(error)) from error
    return period.first_day, period.last_day
