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
from cloud_jobs.billing.register.closing import Closing, PeriodKey
from cloud_jobs.billing.register.errors import RegisterDamaged, UnknownDocument
from cloud_jobs.billing.register.ledger import IssuedDocument, Ledger, Numbering
from cloud_jobs.billing.register.rows import charges_from, closing_from, document_from, lines_digest
from cloud_jobs.lake.schemas import TABLES
from cloud_jobs.lake.stored_files import Range, StoredFiles, read_stored
from cloud_jobs.lake.tables import Lake, row_fault_as_error

_NUMBERS: Final = ("legal_entity", "counter", "issue_date")
_OF_THE_LEDGER: Final = tuple(name for name in TABLES["documents"].schema.names if name not in {"head", "attempt"})


@dataclass(frozen=True, slots=True)
class Register:
    """What the tables of the register hold. Each read raises LakeError, StoreUnavailable, RegisterDamaged."""

    lake: Lake

    def closings(self, first_day: date, last_day: date, payers: Collection[str] | None = None) -> dict[str, Closing]:
        """The newest closing of each payer for exactly these days."""
        ranges: dict[str, Range] = {"last_day": (last_day, last_day)}
        newest: dict[str, Closing] = {}
        for row in self._rows("closings", ranges, payers, day=first_day):
            with row_fault_as_error("closings", row):
                closing = closing_from(row)
            before = newest.get(closing.key.payer)
            if before is None or before.rank < closing.rank:
                newest[closing.key.payer] = closing
        return newest

    def closing(self, key: PeriodKey, closing_id: str) -> Closing:
        """The closing that a document names. Raises RegisterDamaged if it is not there."""
        run = closing_id.rpartition("/")[2]
        ranges: dict[str, Range] = {"last_day": (key.last_day, key.last_day), "run": (run, run)}
        for row in self._rows("closings", ranges, [key.payer], day=key.first_day):
            with row_fault_as_error("closings", row):
                closing = closing_from(row)
            if closing.id == closing_id and closing.key == key:
                return closing
        raise RegisterDamaged(f"the closing {closing_id} of {key.payer} is not there, but a document was made of it")

    def charges(self, closing: Closing) -> tuple[Charge, ...]:
        """The charges of a closing, which are those that it was made with. Raises RegisterDamaged if they are not."""
        key = closing.key
        ranges: dict[str, Range] = {"payer": (key.payer, key.payer), "run": (closing.run, closing.run)}
        rows = self._read("rated_lines", ranges, TABLES["rated_lines"].schema.names, key.first_day)
        found = charges_from(rows.filter(pc.equal(rows["last_day"], pa.scalar(key.last_day))))
        if lines_digest(found) != closing.lines_digest:
            raise RegisterDamaged(
                f"the lines of the closing {closing.id} of {key.payer} are not those it was made with"
            )
        return found

    def document(self, number: str, legal_entity: str | None = None) -> tuple[IssuedDocument, Mapping[str, Any]]:
        """A document and its row. Raises UnknownDocument."""
        found = [
            row
            for row in self._rows("documents", {"number": (number, number)})
            if legal_entity in {None, row["legal_entity"]}
        ]
        if not found:
            raise UnknownDocument(number)
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

    def ledger(self, opened: DeltaTable, keys: Iterable[PeriodKey]) -> Ledger:
        """What has a say in documents of some periods, in the version of `documents` that was opened."""
        keys = [*keys]
        if not keys:
            return Ledger()
        payers = {key.payer for key in keys}
        first, last = min(key.first_day for key in keys), max(key.last_day for key in keys)
        documents = self._documents(opened, payers, first, last)
        return Ledger(documents, self._numbering(opened, {key.legal_entity for key in keys}))

    def attempted(self, opened: DeltaTable, attempt: str) -> list[IssuedDocument]:
        """What a command wrote already, in the version that was opened."""
        rows = self._rows("documents", {"attempt": (attempt, attempt)}, opened=opened)
        return sorted((document_from(row) for row in rows), key=lambda one: (one.key.legal_entity, one.counter))

    def counters(self) -> dict[str, list[int]]:
        """The counters of all documents of each legal entity, in order."""
        rows = self._read("documents", {}, ["legal_entity", "counter"])
        grouped = rows.sort_by("counter").group_by("legal_entity", use_threads=False).aggregate([("counter", "list")])
        return {row["legal_entity"]: row["counter_list"] for row in grouped.to_pylist()}

    def _documents(
        self, opened: DeltaTable, payers: Collection[str] | None, first_day: date | None, last_day: date | None
    ) -> Iterator[IssuedDocument]:
        ranges: dict[str, Range] = {"last_day": (first_day, None), "first_day": (None, last_day)}
        for row in self._rows("documents", ranges, payers, columns=_OF_THE_LEDGER, opened=opened):
            with row_fault_as_error("documents", row):
                made = document_from(row)
            yield made

    def _numbering(self, opened: DeltaTable, legal_entities: Collection[str]) -> dict[str, Numbering]:
        """Where the numbers of legal entities are: a file of one of them says it by its bounds."""
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
            if entities[0] is not None and entities[0] == entities[1]:
                seen(entities[0], counters[1], dates[1])
                continue
            for row in read_stored(files, "documents", path, _NUMBERS, {}).to_pylist():
                seen(row["legal_entity"], row["counter"], row["issue_date"])
        return {name: found for name, found in numbering.items() if name in legal_entities}

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
        with self.lake.damage_as_error(table):
            stored = StoredFiles.of(opened or self.lake.open(table), table)
            if not len(stored):
                return TABLES[table].schema.empty_table().select([*columns])
            if day is not None:
                stored = stored.on_days([day])
            for name, (low, high) in ranges.items():
                stored = stored.between(name, low, high)
            files = self.lake.files(table)
            empty = TABLES[table].schema.empty_table().select([*columns])
            found = (read_stored(files, table, path, [*columns], ranges) for path in stored.paths)
            return pa.concat_tables([empty, *(rows.cast(empty.schema) for rows in found)])
