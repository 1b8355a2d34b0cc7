"""The register in the lake: what was closed and what was issued, found without reading what is of other payers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from cloud_jobs.billing.rating import Charge
from cloud_jobs.billing.register.closing import Closing, PeriodKey, RegisterKey
from cloud_jobs.billing.register.errors import RegisterDamaged, UnknownDocument
from cloud_jobs.billing.register.ledger import BESIDE, IssuedDocument, Ledger, Numbering, document_number
from cloud_jobs.billing.register.rows import (
    CHARGE_COLUMNS,
    charge_columns,
    charges_from,
    closing_from,
    document_from,
    lines_digest,
)
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.schemas import TABLES
from cloud_jobs.lake.stored_files import Range, StoredFiles, read_stored, stored_rows
from cloud_jobs.lake.tables import Lake, row_fault_as_error

_NUMBERS: Final = ("legal_entity", "counter", "issue_date")
_OF_THE_LEDGER: Final = tuple(name for name in TABLES["documents"].schema.names if name not in {"head", "attempt"})


@dataclass(frozen=True, slots=True)
class Register:
    """What the tables of the register hold. Each read raises LakeError, StoreUnavailable, RegisterDamaged."""

    lake: Lake

    def closings(self, first_day: date, last_day: date, payers: Collection[str] | None = None) -> list[Closing]:
        """All closings of some payers, or of all, for exactly these days, in order of payer and rank."""
        ranges: dict[str, Range] = {"last_day": (last_day, last_day)}
        found = []
        for row in self._rows("closings", ranges, payers, day=first_day):
            with row_fault_as_error("closings", row):
                found.append(closing_from(row))
        return sorted(found, key=lambda one: (one.key.payer, one.rank))

    def payers(self, first_day: date, last_day: date) -> list[str]:
        """Whose closings for exactly these days there are, in order."""
        ranges: dict[str, Range] = {"last_day": (last_day, last_day)}
        return sorted(self._read("closings", ranges, ["payer"], first_day)["payer"].unique().to_pylist())

    def newest_snapshots(self, first_day: date, last_day: date, *, until: int | None = None) -> dict[str, int]:
        """Of each payer that was closed for exactly these days the number of the snapshot that counts; `until`: by
        those up to a number."""
        ranges: dict[str, Range] = {"last_day": (last_day, last_day), "snapshot": (None, until)}
        rows = self._read("closings", ranges, ["payer", "snapshot"], first_day)
        newest = rows.group_by("payer").aggregate([("snapshot", "max")])
        return dict(zip(newest["payer"].to_pylist(), newest["snapshot_max"].to_pylist(), strict=True))

    def payers_by_snapshot(self, opened: DeltaTable, first_day: date, last_day: date) -> dict[int, set[str]]:
        """By the number of the snapshot that was posted whose documents there are, of periods with a day of these."""
        ranges: dict[str, Range] = {"last_day": (first_day, None), "first_day": (None, last_day)}
        rows = self._read("documents", ranges, ["snapshot", "payer"], opened=opened)
        grouped = rows.group_by("snapshot").aggregate([("payer", "distinct")])
        return {row["snapshot"]: {*row["payer_distinct"]} for row in grouped.to_pylist()}

    def posted(self, opened: DeltaTable, payers: Collection[str], first_day: date, last_day: date) -> Ledger:
        """What stands of some payers, of periods with a day of these; it numbers nothing."""
        return Ledger(self._documents(opened, payers, first_day, last_day))

    def closing(self, key: PeriodKey, closing_id: str) -> Closing:
        """The closing that a document names. Raises RegisterDamaged if it is not there."""
        # its id ends with the run, by which its file is found
        run = closing_id.rpartition("/")[2]
        ranges: dict[str, Range] = {"last_day": (key.last_day, key.last_day), "run": (run, run)}
        for row in self._rows("closings", ranges, [key.payer], day=key.first_day):
            with row_fault_as_error("closings", row):
                closing = closing_from(row)
            if closing.id == closing_id and closing.key == key:
                return closing
        raise missing_closing(key.payer, closing_id)

    def charges_of(self, closings: Collection[Closing]) -> dict[RegisterKey, tuple[Charge, ...]]:
        """The charges of closings of one period, which are those that they were made with.

        Raises RegisterDamaged if they are not.
        """
        if not closings:
            return {}
        found = charges_from(
            self._of_closings("rated_lines", closings, CHARGE_COLUMNS), {(one.key.payer, one.run) for one in closings}
        )
        charges = {}
        for one in closings:
            of_one = found[one.key.payer, one.run]
            if lines_digest(charge_columns(of_one)) != one.lines_digest:
                raise RegisterDamaged(f"the lines of the closing {one.id} of {one.key.payer} are not those of then")
            charges[one.in_register] = of_one
        return charges

    def check_charges(self, closings: Collection[Closing]) -> None:
        """That closings of one period have as many charges as they were made with, of their sum.

        Raises RegisterDamaged if they do not.
        """
        if not closings:
            return
        rows = pa.concat_tables(self._of_closings("rated_lines", closings, ["payer", "run", "amount_minor"]))
        sums = rows.group_by(["payer", "run"]).aggregate([("amount_minor", "count"), ("amount_minor", "sum")])
        found = {(row["payer"], row["run"]): (*row.values(),)[-2:] for row in sums.to_pylist()}
        wrong = [one for one in closings if found.get((one.key.payer, one.run), (0, 0)) != (one.charges, one.net_minor)]
        # a row that is there twice is one charge: which they are is looked at one by one
        self.charges_of(wrong)

    def document(self, number: str, legal_entity: str | None = None) -> tuple[IssuedDocument, Mapping[str, Any]]:
        """A document and its row. Raises UnknownDocument."""
        found = [
            row
            for row in self._rows("documents", {"number": (number, number)})
            if legal_entity in {None, row["legal_entity"]}
        ]
        if not found:
            raise UnknownDocument(number)
        # two sellers may have chosen one prefix
        if len(found) > 1:
            entities = ", ".join(sorted(row["legal_entity"] for row in found))
            raise RegisterDamaged(
                f"the number {number} is of several legal entities ({entities}); say which with --seller"
            )
        with row_fault_as_error("documents", found[0]):
            return document_from(found[0]), found[0]

    def documents(
        self, payers: Collection[str] | None = None, *, first_day: date | None = None, last_day: date | None = None
    ) -> list[IssuedDocument]:
        """The documents of payers, or of all, of periods that have a day of those from `first_day` to `last_day`."""
        found = self._documents(self.lake.open("documents"), payers, first_day, last_day)
        return sorted(found, key=lambda one: (one.key.legal_entity, one.counter))

    def ledger(
        self, opened: DeltaTable, keys: Iterable[PeriodKey], numbering: Mapping[str, Numbering] | None = None
    ) -> Ledger:
        """What has a say in documents of some periods, in the version of `documents` that was opened.

        `numbering`: where the numbers are, for a caller that has given some already.
        """
        keys = [*keys]
        if not keys:
            return Ledger(numbering=numbering)
        payers = {key.payer for key in keys}
        # by other clocks the days before and after may overlap, too
        first, last = min(key.first_day for key in keys) - BESIDE, max(key.last_day for key in keys) + BESIDE
        documents = self._documents(opened, payers, first, last)
        return Ledger(documents, {**self._numbering(opened), **(numbering or {})})

    def numbers_of_others(self, opened: DeltaTable, ledger: Ledger, closings: Collection[Closing]) -> dict[str, str]:
        """Of the numbers that documents of closings would get those that another seller's have, and whose they are."""
        found: dict[str, str] = {}
        for seller, prefix in sorted({(one.key.legal_entity, one.number_prefix) for one in closings}):
            counter = ledger.numbering(seller).counter
            # its own end before these, however many there are
            low, high = (document_number(prefix, counter + one) for one in (1, len(closings)))
            rows = self._read("documents", {"number": (low, high)}, ["number", "legal_entity"], opened=opened)
            found.update((row["number"], row["legal_entity"]) for row in rows.to_pylist())
        return found

    def attempted(self, opened: DeltaTable, attempt: str) -> list[IssuedDocument]:
        """What a command wrote already, in the version that was opened."""
        rows = self._rows("documents", {"attempt": (attempt, attempt)}, columns=_OF_THE_LEDGER, opened=opened)
        return sorted((document_from(row) for row in rows), key=lambda one: (one.key.legal_entity, one.counter))

    def counters(self) -> dict[str, list[int]]:
        """The counters of all documents of each legal entity, in order."""
        rows = self._read("documents", {}, ["legal_entity", "counter"])
        grouped = rows.sort_by("counter").group_by("legal_entity", use_threads=False).aggregate([("counter", "list")])
        return {row["legal_entity"]: row["counter_list"] for row in grouped.to_pylist()}

    def certified_devices(
        self, first_day: date, last_day: date, devices: Collection[TenantDevice]
    ) -> dict[TenantDevice, set[str]]:
        """By device the payers that were closed for exactly these days with a certificate of it."""
        names = sorted({one.device for one in devices})
        ranges: dict[str, Range] = {"last_day": (last_day, last_day)}
        rows = self._read("certificates", ranges, ["tenant", "device", "payer"], first_day)
        rows = rows.filter(pc.is_in(rows["device"], pa.array(names, pa.string())))
        found: dict[TenantDevice, set[str]] = {}
        for tenant, device, payer in zip(*(rows[name].to_pylist() for name in rows.column_names), strict=True):
            found.setdefault(TenantDevice(tenant, device), set()).add(payer)
        return {one: found[one] for one in {*devices} & found.keys()}

    def certificates_of(self, closings: Collection[Closing]) -> pa.Table:
        """Rows of CERTIFICATES of closings of one period, and of other runs and payers between them."""
        if not closings:
            return TABLES["certificates"].schema.empty_table()
        columns = ["payer", "run", "tenant", "device", "certificate"]
        return pa.concat_tables(self._of_closings("certificates", closings, columns))

    def _of_closings(self, table: str, closings: Collection[Closing], columns: Collection[str]) -> Iterator[pa.Table]:
        """Rows of closings of one period, and of other runs and payers between them, some at a time."""
        days = {(one.key.first_day, one.key.last_day) for one in closings}
        assert len(days) == 1, "closings of one period"
        ((first_day, last_day),) = days
        payers, runs = {one.key.payer for one in closings}, {one.run for one in closings}
        ranges: dict[str, Range] = {"payer": (min(payers), max(payers)), "run": (min(runs), max(runs))}
        ranges["last_day"] = last_day, last_day
        return self._pieces(table, ranges, columns, first_day)

    def _documents(
        self, opened: DeltaTable, payers: Collection[str] | None, first_day: date | None, last_day: date | None
    ) -> Iterator[IssuedDocument]:
        ranges: dict[str, Range] = {"last_day": (first_day, None), "first_day": (None, last_day)}
        for row in self._rows("documents", ranges, payers, columns=_OF_THE_LEDGER, opened=opened):
            with row_fault_as_error("documents", row):
                made = document_from(row)
            yield made

    def _numbering(self, opened: DeltaTable) -> dict[str, Numbering]:
        """Where the numbers of each legal entity are: a file of one of them says it by its bounds."""
        numbering: dict[str, Numbering] = {}

        def seen(legal_entity: str, counter: int, issue_date: date) -> None:
            before = numbering.get(legal_entity, Numbering())
            numbering[legal_entity] = Numbering(
                counter=max(before.counter, counter), issue_date=max(before.issue_date, issue_date)
            )

        stored, files = StoredFiles.of(opened, "documents"), self.lake.files("documents")
        if not len(stored):
            return {}
        bounds = zip(stored.paths, *(stored.bounds(name) for name in _NUMBERS), strict=True)
        for path, entities, counters, dates in bounds:
            # issue writes each seller's rows apart; a merge may have put two into one file
            if entities[0] is not None and entities[0] == entities[1]:
                seen(entities[0], counters[1], dates[1])
                continue
            for row in read_stored(files, "documents", path, _NUMBERS, {}).to_pylist():
                seen(row["legal_entity"], row["counter"], row["issue_date"])
        return numbering

    def _rows(
        self,
        table: str,
        ranges: Mapping[str, Range],
        payers: Collection[str] | None = None,
        *,
        columns: Collection[str] | None = None,
        day: date | None = None,
        opened: DeltaTable | None = None,
    ) -> list[dict[str, Any]]:
        if payers is not None:
            if not payers:
                return []
            ranges = {**ranges, "payer": (min(payers), max(payers))}
        rows = self._read(table, ranges, columns or TABLES[table].schema.names, day, opened)
        if payers is not None and len(payers) > 1:
            rows = rows.filter(pc.is_in(rows["payer"], pa.array(sorted(payers), pa.string())))
        # deleted and added again by a merge: rows are what they are, in an order of their own
        return list(rows.to_pylist())

    def _read(
        self,
        table: str,
        ranges: Mapping[str, Range],
        columns: Collection[str],
        day: date | None = None,
        opened: DeltaTable | None = None,
    ) -> pa.Table:
        return pa.concat_tables(self._pieces(table, ranges, columns, day, opened))

    def _pieces(
        self,
        table: str,
        ranges: Mapping[str, Range],
        columns: Collection[str],
        day: date | None = None,
        opened: DeltaTable | None = None,
    ) -> Iterator[pa.Table]:
        """The rows of one group of a file after another; first none, so that there is a table."""
        empty = TABLES[table].schema.empty_table().select([*columns])
        yield empty
        with self.lake.damage_as_error(table):
            stored = StoredFiles.of(opened or self.lake.open(table), table)
            if not len(stored):
                return
            if day is not None:
                stored = stored.on_days([day])
            for name, (low, high) in ranges.items():
                stored = stored.between(name, low, high)
            files = self.lake.files(table)
            for path in stored.paths:
                for rows in stored_rows(files, table, path, [*columns], ranges):
                    yield rows.cast(empty.schema)


def missing_closing(payer: str, closing_id: str) -> RegisterDamaged:
    """What to raise where a document names a closing that is not there."""
    return RegisterDamaged(f"the closing {closing_id} of {payer} is not there, but a document was made of it")
