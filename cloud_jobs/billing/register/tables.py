"""The register's tables: closings, charges, certificates and documents as rows, and queries by payer and period."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import lru_cache
from hashlib import sha256
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from cloud_jobs.billing.contracts.fields import VatCategory
from cloud_jobs.billing.contracts.published import micros, moment_of
from cloud_jobs.billing.documents import DocumentType, PrecedingInvoice
from cloud_jobs.billing.documents.canonical import canonical_text
from cloud_jobs.billing.rating import Charge, ChargeKey, ChargeKind, MeteredRows, TaxGroup
from cloud_jobs.billing.register.closing import Closing, ClosingState, PeriodKey
from cloud_jobs.billing.register.errors import RegisterDamaged, UnknownDocument
from cloud_jobs.billing.register.ledger import BESIDE, IssuedDocument, Ledger, Numbering
from cloud_jobs.billing.units import Meter
from cloud_jobs.lake.data_files import Range, StoredFiles
from cloud_jobs.lake.schemas import CERTIFICATES, CHARGE_KEY, RATED_LINES, TABLES
from cloud_jobs.lake.tables import Condition, Lake, row_fault_as_error

if TYPE_CHECKING:
    from cloud_jobs.billing.certificates import DeviceCertificate


# Closings, charges and documents as table rows, and back. Pure.

_METERED: Final = ("rows", "first_hour", "last_hour", "digest")
_COUNTED: Final = ("quantity", "free", "amount_minor")
_MOMENTS: Final = ("first_hour", "last_hour")
_NOT_METERED: Final = (None,) * len(_METERED)
_STORED: Final = (*CHARGE_KEY, *_COUNTED, *_METERED, "parts", "gross_minor")
CHARGE_COLUMNS: Final = ("payer", "run", *_STORED)
"""The columns of RATED_LINES that make a charge."""
_KINDS: Final = {kind.value: kind for kind in ChargeKind}
_METERS: Final[dict[str, Meter | None]] = {"": None, **{meter.value: meter for meter in Meter}}

Row = dict[str, Any]
Columns = Mapping[str, Sequence[Any]]
"""Charges as columns: a month of many payers has millions."""


class CertificateRow(NamedTuple):
    """The device columns of CERTIFICATES. `certificate`: canonical JSON with the digest."""

    tenant: str
    device: str
    state: str
    digest: str
    certificate: str


def digest_of(text: str) -> str:
    """SHA-256 (hex) of a text."""
    return sha256(text.encode()).hexdigest()


def charge_columns(charges: Sequence[Charge]) -> Columns:
    """The charge columns of RATED_LINES, for charges in the order of their keys."""
    if not charges:
        return dict.fromkeys(_STORED, ())
    keys, *counted, metered, parts, gross = zip(*charges, strict=True)
    behind = *zip(*(one or _NOT_METERED for one in metered), strict=True), parts, gross
    columns: dict[str, Sequence[Any]] = dict(zip(_STORED, (*zip(*keys, strict=True), *counted, *behind), strict=True))
    return columns | {"meter": [meter or "" for meter in columns["meter"]]}


def charge_rows(run: str, charges: Sequence[tuple[PeriodKey, Columns]]) -> pa.Table:
    sizes = [len(columns["account"]) for _, columns in charges]
    made = _of_payers(RATED_LINES, run, [key for key, _ in charges], sizes)
    for name in _STORED:
        values = chain.from_iterable(columns[name] for _, columns in charges)
        # as integers, because Arrow asks each datetime for its time zone
        plain = [*(map(_micros, values) if name in _MOMENTS else values)]
        made[name] = pa.array(plain, RATED_LINES.field(name).type)
    return pa.table([made[name] for name in RATED_LINES.names], schema=RATED_LINES)


def certificate_row(certificate: DeviceCertificate) -> CertificateRow:
    return CertificateRow(certificate.tenant, certificate.device, certificate.state.value, *certificate.sealed())


def certificate_rows(run: str, certificates: Sequence[tuple[PeriodKey, Sequence[CertificateRow]]]) -> pa.Table:
    made = _of_payers(CERTIFICATES, run, [key for key, _ in certificates], [len(rows) for _, rows in certificates])
    rows = [row for _, of_payer in certificates for row in of_payer]
    columns = zip(*rows, strict=True) if rows else ((),) * len(CertificateRow._fields)
    made |= {
        name: pa.array([*values], CERTIFICATES.field(name).type)
        for name, values in zip(CertificateRow._fields, columns, strict=True)
    }
    return pa.table([made[name] for name in CERTIFICATES.names], schema=CERTIFICATES)


def charges_from(
    tables: Iterable[pa.Table], runs: Collection[tuple[str, str]]
) -> dict[tuple[str, str], tuple[Charge, ...]]:
    """The charges of each payer and run, in the order of their keys. A repeated row is one charge.

    `tables`: rows in CHARGE_COLUMNS, also of other payers and runs; read one by one.
    """
    found: dict[tuple[str, str], dict[ChargeKey, Charge]] = {run: {} for run in runs}
    # many charges share device, place and price
    texts: dict[str, str] = {}
    for rows in tables:
        columns = (_plain_values(rows[name], texts) for name in CHARGE_COLUMNS)
        for payer, run, *values in zip(*columns, strict=True):
            of_run = found.get((payer, run))
            if of_run is not None:
                charge = _charge(values)
                of_run[charge.key] = charge
    return {run: tuple(sorted(charges.values(), key=lambda one: one.key.order)) for run, charges in found.items()}


def lines_digest(columns: Columns) -> str:
    """The digest of charges, column by column, that a closing stores."""
    found = sha256()
    for name in _STORED:
        values = columns[name]
        found.update(canonical_text([*map(_text_of, values)] if name in _MOMENTS else values).encode())
    return found.hexdigest()


def closing_row(closing: Closing, closed_at: datetime) -> dict[str, Any]:
    return {
        **closing.key._asdict(),
        "snapshot": closing.snapshot,
        "snapshot_id": closing.snapshot_id,
        "number": closing.number,
        "run": closing.run,
        "outcome": closing.outcome.value,
        "reasons": canonical_text([*closing.reasons]),
        "period_start": closing.period_start,
        "period_end": closing.period_end,
        "time_zone": closing.time_zone,
        "number_prefix": closing.number_prefix,
        "currency": closing.currency,
        "net_minor": closing.net_minor,
        "tax_minor": closing.tax_minor,
        "rounding_minor": closing.rounding_minor,
        "charges": closing.charges,
        "taxes": closing.taxes,
        "lines_digest": closing.lines_digest,
        "body_digest": closing.body_digest,
        "certificates_digest": closing.certificates_digest,
        "control_totals": closing.control_totals,
        "parties": closing.parties,
        "contract_digest": closing.contract_digest,
        "decisions": canonical_text([*closing.decisions]),
        "closed_at": closed_at,
    }


def closing_from(row: Mapping[str, Any]) -> Closing:
    same = {name: row[name] for name in Closing.__dataclass_fields__ if name in row}
    return Closing(
        **same
        | {
            "key": _key(row),
            "outcome": ClosingState(row["outcome"]),
            "reasons": tuple(json.loads(row["reasons"])),
            "decisions": tuple(json.loads(row["decisions"])),
            "period_start": row["period_start"].astimezone(UTC),
            "period_end": row["period_end"].astimezone(UTC),
        }
    )


def taxes_text(taxes: Sequence[TaxGroup]) -> str:
    return canonical_text(
        [
            {
                "category": group.category.value,
                "rate": str(group.rate),
                "exemption_reason": group.exemption_reason,
                "taxable_minor": group.taxable_minor,
                "tax_minor": group.tax_minor,
            }
            for group in taxes
        ]
    )


def taxes_from(text: str) -> tuple[TaxGroup, ...]:
    return tuple(
        TaxGroup(**row | {"category": VatCategory(row["category"]), "rate": Decimal(row["rate"])})
        for row in json.loads(text)
    )


def document_row(document: IssuedDocument, head: str, digest: str, attempt: str) -> dict[str, Any]:
    """`digest`: of the whole document; `head`: the document without its body."""
    reference, due = document.reference, json.loads(head).get("payment_due_date")
    return {
        **document.key._asdict(),
        "counter": document.counter,
        "number": document.number,
        "type": int(document.type),
        "closing": document.closing,
        "before": document.before,
        "currency": document.currency,
        "time_zone": document.time_zone,
        "snapshot": document.rank[0],
        "closing_number": document.rank[1],
        "net_minor": document.net_minor,
        "tax_minor": document.tax_minor,
        "rounding_minor": document.rounding_minor,
        "issued_at": document.issued_at,
        "issue_date": document.issue_date,
        # the head has it as text
        "due_date": due and date.fromisoformat(due),
        "reference_number": None if reference is None else reference.number,
        "reference_date": None if reference is None else reference.issue_date,
        "by": document.by,
        "reason": document.reason,
        "head": head,
        "digest": digest,
        "attempt": attempt,
    }


def document_from(row: Mapping[str, Any]) -> IssuedDocument:
    number = row["reference_number"]
    return IssuedDocument(
        key=_key(row),
        counter=row["counter"],
        number=row["number"],
        type=DocumentType(str(row["type"])),
        closing=row["closing"],
        rank=(row["snapshot"], row["closing_number"]),
        before=row["before"],
        currency=row["currency"],
        time_zone=row["time_zone"],
        net_minor=row["net_minor"],
        tax_minor=row["tax_minor"],
        rounding_minor=row["rounding_minor"],
        issued_at=row["issued_at"].astimezone(UTC),
        issue_date=row["issue_date"],
        due_date=row["due_date"],
        reference=None if number is None else PrecedingInvoice(number=number, issue_date=row["reference_date"]),
        by=row["by"],
        reason=row["reason"],
    )


def _key(row: Mapping[str, Any]) -> PeriodKey:
    return PeriodKey(row["legal_entity"], row["payer"], row["first_day"], row["last_day"])


def _of_payers(schema: pa.Schema, run: str, keys: Sequence[PeriodKey], sizes: Sequence[int]) -> dict[str, pa.Array]:
    """The columns of period, payer and run; `sizes`: number of rows of each payer."""
    payer = np.repeat(np.arange(len(keys)), sizes)
    made = {
        name: pa.array([getattr(key, name) for key in keys], schema.field(name).type).take(pa.array(payer))
        for name in ("first_day", "last_day", "payer")
    }
    return made | {"run": pa.repeat(pa.scalar(run, schema.field("run").type), len(payer))}


def _charge(row: Sequence[Any]) -> Charge:
    account, region, tenant, device, kind, meter, zone, window, price, tax, quantity, free, amount_minor = row[:13]
    rows, first_us, last_us, digest, parts, gross_minor = row[13:]
    key = ChargeKey(account, region, tenant, device, _KINDS[kind], _METERS[meter], zone, window, price, tax)
    metered = None if rows is None else MeteredRows(rows, _moment(first_us), _moment(last_us), digest)
    return Charge(key, quantity, free, amount_minor, metered, parts, gross_minor)


@lru_cache(maxsize=4096)
def _micros(moment: datetime | None) -> int | None:
    return None if moment is None else micros(moment)


@lru_cache(maxsize=4096)
def _text_of(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat()


def _plain_values(column: pa.ChunkedArray, texts: dict[str, str]) -> list[Any]:
    """Moments as integers, which Arrow converts many times faster. Equal texts share one object of `texts`."""
    if pa.types.is_string(column.type):
        coded = column.combine_chunks().dictionary_encode()
        known = [text and texts.setdefault(text, text) for text in (*coded.dictionary.to_pylist(), None)]
        return [known[at] for at in coded.indices.fill_null(len(known) - 1).to_pylist()]
    plain = column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
    return list(plain.to_pylist())


@lru_cache(maxsize=4096)
def _moment(us: int) -> datetime:
    """Cached: a period has few hours, and many rows of each."""
    return moment_of(us)


_Item = TypeVar("_Item")
_OF_THE_LEDGER: Final = tuple(name for name in TABLES["documents"].schema.names if name not in {"head", "attempt"})


@dataclass(frozen=True, slots=True)
class Register:
    """The tables of the register. Each read raises LakeError, StoreUnavailable, RegisterDamaged."""

    lake: Lake

    def closings(self, first_day: date, last_day: date, payers: Collection[str] | None = None) -> list[Closing]:
        """The closings of some payers, or of all, for exactly these days, by payer and rank."""
        where: list[Condition] = [("first_day", "=", first_day), ("last_day", "=", last_day)]
        found = []
        for row in self.lake.rows("closings", where=[*where, *_of_payers_alone(payers)]).to_pylist():
            with row_fault_as_error("closings", row):
                found.append(closing_from(row))
        return sorted(found, key=lambda one: (one.key.payer, one.rank))

    def payers(self, first_day: date, last_day: date) -> list[str]:
        """The payers with a closing for exactly these days, sorted."""
        where: list[Condition] = [("first_day", "=", first_day), ("last_day", "=", last_day)]
        return sorted(self.lake.rows("closings", ["payer"], where=where)["payer"].unique().to_pylist())

    def payers_by_snapshot(self, opened: DeltaTable, first_day: date, last_day: date) -> dict[int, set[str]]:
        """The payers with documents of periods that overlap these days, by number of the posted snapshot."""
        where: list[Condition] = [("last_day", ">=", first_day), ("first_day", "<=", last_day)]
        rows = self.lake.rows("documents", ["snapshot", "payer"], where=where, opened=opened)
        grouped = rows.group_by("snapshot").aggregate([("payer", "distinct")])
        return {row["snapshot"]: {*row["payer_distinct"]} for row in grouped.to_pylist()}

    def posted(self, opened: DeltaTable, payers: Collection[str], first_day: date, last_day: date) -> Ledger:
        """The ledger of some payers for periods that overlap these days, without numbering."""
        return Ledger(self._documents(payers, first_day, last_day, opened=opened))

    def closing(self, key: PeriodKey, closing_id: str) -> Closing:
        """The closing that a document names. Raises RegisterDamaged if it does not exist."""
        # the id ends with the run, which selects the file
        run = closing_id.rpartition("/")[2]
        where: list[Condition] = [("last_day", "=", key.last_day), ("run", "=", run), ("payer", "=", key.payer)]
        for row in self.lake.rows("closings", where=where).to_pylist():
            with row_fault_as_error("closings", row):
                closing = closing_from(row)
            if closing.id == closing_id and closing.key == key:
                return closing
        raise missing_closing(key.payer, closing_id)

    def charges_of(self, closings: Collection[Closing]) -> dict[str, tuple[Charge, ...]]:
        """The charges of closings of one period, by id. Raises RegisterDamaged if any differ from the closing's."""
        charges = {}
        for name, found in self.charges_or_damage(closings).items():
            if isinstance(found, RegisterDamaged):
                raise found
            charges[name] = found
        return charges

    def charges_or_damage(self, closings: Collection[Closing]) -> dict[str, tuple[Charge, ...] | RegisterDamaged]:
        """`charges_of`, with the damage instead of the charges of a closing."""
        if not closings:
            return {}
        found = charges_from(
            self._of_closings("rated_lines", closings, CHARGE_COLUMNS), {(one.key.payer, one.run) for one in closings}
        )
        charges: dict[str, tuple[Charge, ...] | RegisterDamaged] = {}
        for one in closings:
            charges[one.id] = of_one = found[one.key.payer, one.run]
            if lines_digest(charge_columns(of_one)) != one.lines_digest:
                charges[one.id] = RegisterDamaged(f"the lines of the closing {one.id} differ from those of its closing")
        return charges

    def amounts(self, closings: Collection[Closing]) -> dict[tuple[str, str], dict[str, int]]:
        """The amounts of closings of one period by device, and by account for charges without a device."""
        found: dict[tuple[str, str], dict[str, int]] = {(one.key.payer, one.run): {} for one in closings}
        if closings:
            key = ["payer", "run", "account", "tenant", "device"]
            rows = pa.concat_tables(self._of_closings("rated_lines", closings, [*key, "amount_minor"]))
            for row in rows.group_by(key).aggregate([("amount_minor", "sum")]).to_pylist():
                of = found.get((row["payer"], row["run"]))
                if of is not None:
                    what = f"device {row['tenant']}/{row['device']}" if row["device"] else f"account {row['account']}"
                    of[what] = of.get(what, 0) + row["amount_minor_sum"]
        return found

    def check_charges(self, closings: Collection[Closing]) -> None:
        """Raises RegisterDamaged if number or sum of the charges of closings of one period differ from the closing."""
        if not closings:
            return
        rows = pa.concat_tables(self._of_closings("rated_lines", closings, ["payer", "run", "amount_minor"]))
        sums = rows.group_by(["payer", "run"]).aggregate([("amount_minor", "count"), ("amount_minor", "sum")])
        found = {(row["payer"], row["run"]): (*row.values(),)[-2:] for row in sums.to_pylist()}
        wrong = [one for one in closings if found.get((one.key.payer, one.run), (0, 0)) != (one.charges, one.net_minor)]
        # repeated rows are one charge, so check those in full
        self.charges_of(wrong)

    def document(self, number: str) -> tuple[IssuedDocument, Mapping[str, Any]]:
        """A document and its row. Raises UnknownDocument."""
        found = self.lake.rows("documents", where=[("number", "=", number)]).to_pylist()
        if not found:
            raise UnknownDocument(number)
        if len(found) > 1:
            raise RegisterDamaged(f"{len(found)} documents have the number {number}")
        with row_fault_as_error("documents", found[0]):
            return document_from(found[0]), found[0]

    def documents(
        self, payers: Collection[str] | None = None, *, first_day: date | None = None, last_day: date | None = None
    ) -> list[IssuedDocument]:
        """The documents of payers, or of all, whose periods overlap these days."""
        return self._documents(payers, first_day, last_day)

    def heads(self, first_day: date, last_day: date, payers: Collection[str] | None = None) -> Iterator[Row]:
        """The heads of the documents that were issued on these days, with legal entity and number.

        A row group at a time: first those of the commands that issued the lowest numbers.
        """
        with self.lake.damage_as_error("documents"):
            stored = StoredFiles.of(self.lake.open("documents"), "documents")
            stored = StoredFiles(
                stored.table, stored.actions.sort_by([("min.legal_entity", "ascending"), ("min.counter", "ascending")])
            )
            columns = ("legal_entity", "number", "payer", "head")
            for rows in stored.rows(self.lake.files("documents"), columns, {"issue_date": (first_day, last_day)}):
                yield from (row for row in rows.to_pylist() if payers is None or row["payer"] in payers)

    def ledger(
        self, opened: DeltaTable, keys: Iterable[PeriodKey], numbering: Mapping[str, Numbering] | None = None
    ) -> Ledger:
        """The ledger for some periods at a version of `documents`.

        `numbering`: the current numbering, for a caller that has numbered documents already.
        """
        keys = [*keys]
        if not keys:
            return Ledger(numbering=numbering)
        payers = {key.payer for key in keys}
        # days of other time zones may overlap
        first, last = min(key.first_day for key in keys) - BESIDE, max(key.last_day for key in keys) + BESIDE
        documents = self._documents(payers, first, last, opened=opened)
        return Ledger(documents, self._numbering(opened) if numbering is None else numbering)

    def attempted(self, opened: DeltaTable, attempt: str) -> list[IssuedDocument]:
        """The documents that a command has already written at a version of `documents`."""
        return self._documents(opened=opened, where=[("attempt", "=", attempt)])

    def counters(self) -> dict[str, list[int]]:
        """The counters of each legal entity's documents, sorted."""
        rows = self.lake.rows("documents", ["legal_entity", "counter"])
        grouped = rows.sort_by("counter").group_by("legal_entity", use_threads=False).aggregate([("counter", "list")])
        return {row["legal_entity"]: row["counter_list"] for row in grouped.to_pylist()}

    def certificates_of(self, closings: Collection[Closing]) -> pa.Table:
        """Rows of CERTIFICATES of closings of one period, and of other runs and payers between them."""
        if not closings:
            return TABLES["certificates"].schema.empty_table()
        columns = ["payer", "run", "tenant", "device", "certificate"]
        return pa.concat_tables(self._of_closings("certificates", closings, columns))

    def _of_closings(self, table: str, closings: Collection[Closing], columns: Collection[str]) -> Iterator[pa.Table]:
        """Rows of closings of one period, piece by piece, with rows of other runs and payers between them."""
        days = {(one.key.first_day, one.key.last_day) for one in closings}
        assert len(days) == 1, "closings of one period"
        ((first_day, last_day),) = days
        payers, runs = {one.key.payer for one in closings}, {one.run for one in closings}
        ranges: dict[str, Range] = {"payer": (min(payers), max(payers)), "run": (min(runs), max(runs))}
        ranges["last_day"] = last_day, last_day
        empty = TABLES[table].schema.empty_table().select([*columns])
        yield empty
        with self.lake.damage_as_error(table):
            stored = StoredFiles.of(self.lake.open(table), table).on_days([first_day])
            for rows in stored.rows(self.lake.files(table), [*columns], ranges):
                yield rows.cast(empty.schema)

    def _documents(
        self,
        payers: Collection[str] | None = None,
        first_day: date | None = None,
        last_day: date | None = None,
        *,
        opened: DeltaTable | None = None,
        where: Sequence[Condition] = (),
    ) -> list[IssuedDocument]:
        conditions = [*where, *_of_payers_alone(payers)]
        if first_day is not None:
            conditions.append(("last_day", ">=", first_day))
        if last_day is not None:
            conditions.append(("first_day", "<=", last_day))
        found = []
        for row in self.lake.rows("documents", _OF_THE_LEDGER, where=conditions, opened=opened).to_pylist():
            with row_fault_as_error("documents", row):
                found.append(document_from(row))
        return sorted(found, key=lambda one: (one.key.legal_entity, one.counter))

    def _numbering(self, opened: DeltaTable) -> dict[str, Numbering]:
        """The last number and date of each legal entity."""
        rows = self.lake.rows("documents", ["legal_entity", "counter", "issue_date"], opened=opened)
        newest = rows.group_by("legal_entity").aggregate([("counter", "max"), ("issue_date", "max")]).to_pylist()
        return {
            row["legal_entity"]: Numbering(counter=row["counter_max"], issue_date=row["issue_date_max"])
            for row in newest
        }


def _of_payers_alone(payers: Collection[str] | None) -> list[Condition]:
    return [] if payers is None else [("payer", "in", pa.array(sorted(payers), pa.string()))]


def in_parts(items: Sequence[_Item], size: int) -> Iterator[Sequence[_Item]]:
    for begin in range(0, len(items), size):
        yield items[begin : begin + size]


def missing_closing(payer: str, closing_id: str) -> RegisterDamaged:
    return RegisterDamaged(f"the closing {closing_id} of {payer} does not exist, but a document refers to it")
