"""Payments that an accounting system reports: imported once, checked row by row, and what is open by them."""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum
from hashlib import sha256
from typing import Annotated, Any, Final, NamedTuple
from zoneinfo import ZoneInfo

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from cloud_jobs.billing.documents.canonical import canonical_text
from cloud_jobs.billing.register.errors import RegisterError
from cloud_jobs.billing.register.ledger import IssuedDocument
from cloud_jobs.billing.register.tables import Register, in_parts
from cloud_jobs.billing.units import amount_text, exponent
from cloud_jobs.lake.appending import append_missing
from cloud_jobs.lake.data_files import StoredFiles
from waybill.identity.registry import first_fault

_TABLE: Final = "payments"
_COLUMNS: Final = ("document", "date", "amount", "currency")
_OPTIONAL: Final = "reference"
MAX_ROWS: Final = 100_000
"""The most rows of a file."""
_AT_ONCE: Final = 2_000
_MAX_MINOR: Final = 10**13
"""Above each invoice, and so small that 900,000 payments of a document have a sum in 64 bits."""


class BadPayments(RegisterError):
    """A file that holds no payments."""


class RefusedPayment(NamedTuple):
    line: int
    reason: str


@dataclass
class PaymentImport:
    """What became of the rows of a file. `known`: the number of those that were imported before."""

    imported: int = 0
    known: int = 0
    refused: list[RefusedPayment] = field(default_factory=list)


_Cell = Annotated[str, StringConstraints(strip_whitespace=True, max_length=200)]
_FORM: Final = "write a day as 2026-12-01 and an amount as 1234.50"
_QUOTED: Final = 'write a quote within a cell twice, in a quoted cell: "Miller ""M"" Ltd"'


class _Payment(BaseModel):
    """A row of a file. `amount`: as 1234.50 or -1234.50."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    document: _Cell
    date: date
    amount: Annotated[str, StringConstraints(strip_whitespace=True, pattern=r"^-?[0-9]{1,15}(\.[0-9]{1,4})?$")]
    currency: _Cell
    reference: _Cell = ""

    def minor(self, currency: str | None) -> int:
        """Raises ValueError if a document in this currency (None: there is no document) cannot be paid with it."""
        if currency is None:
            raise ValueError(f"there is no document {self.document!r}")
        if self.currency != currency:
            raise ValueError(f"{self.document} is in {currency}, not in {self.currency!r}")
        minor = Decimal(self.amount).scaleb(exponent(currency))
        if not minor or minor != int(minor) or abs(minor) > _MAX_MINOR:
            raise ValueError(f"the amount {self.amount} is 0, too large, or has more decimals than {currency}")
        return int(minor)


def import_payments(register: Register, lines: Iterable[str], *, by: str, now: datetime) -> PaymentImport:
    """Adds the payments of a CSV in one commit; a row that was imported before changes nothing.

    Raises BadPayments for a file with another header or too many rows; LakeError, CommitConflict.
    """
    found = PaymentImport()
    rows = [*_parsed(lines, found.refused)]
    currencies = _currencies(register, {one.document for _, one in rows})
    made: dict[str, dict[str, Any]] = {}
    repeated = Counter[tuple[Any, ...]]()
    for line, one in rows:
        try:
            minor = one.minor(currencies.get(one.document))
        except ValueError as error:
            found.refused.append(RefusedPayment(line, str(error)))
            continue
        key = (one.document, one.date.isoformat(), minor, one.currency, one.reference)
        repeated[key] += 1
        identity = sha256(canonical_text([*key, repeated[key]]).encode()).hexdigest()[:32]
        facts = {"id": identity, "amount_minor": minor, "by": by, "imported_at": now}
        made[identity] = one.model_dump(exclude={"amount"}) | facts
    found.refused.sort()

    def missing(stored: pa.Table) -> list[dict[str, Any]]:
        known = {*stored["id"].to_pylist()}
        return [row for identity, row in made.items() if identity not in known]

    found.imported = len(append_missing(register.lake, _TABLE, ["id"], missing)) if made else 0
    found.known = len(made) - found.imported
    return found


def _parsed(lines: Iterable[str], refused: list[RefusedPayment]) -> Iterator[tuple[int, _Payment]]:
    """The rows that can be read; the others are refused. Each line is a row, so that no quote hides the next one."""
    rest = iter(lines)
    try:
        header = next(csv.reader([next(rest, "")], skipinitialspace=True, strict=True), [])
    except csv.Error as error:
        raise BadPayments(f"the first line is no CSV: {error}") from error
    if {*header} - {_OPTIONAL} != {*_COLUMNS} or len({*header}) != len(header):
        raise BadPayments(
            f"the first line must name the columns {','.join(_COLUMNS)}, with commas, and may name {_OPTIONAL}; "
            f"it is {','.join(header)[:200]!r}"
        )
    for number, line in enumerate(rest, 2):
        if number > MAX_ROWS + 1:
            raise BadPayments(f"the file has more than {MAX_ROWS:,} rows; split it")
        try:
            for row in csv.DictReader([line], header, restval="", skipinitialspace=True, strict=True):
                yield number, _Payment.model_validate_strings({str(name): str(cell) for name, cell in row.items()})
        except csv.Error as error:
            refused.append(RefusedPayment(number, f"it is no row of a CSV ({error}); {_QUOTED}"))
        except ValidationError as error:
            refused.append(RefusedPayment(number, f"it cannot be read: {first_fault(error)}; {_FORM}"))


def _currencies(register: Register, numbers: Collection[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in in_parts(sorted(numbers), _AT_ONCE):
        where = [("number", "in", pa.array(part, pa.string()))]
        rows = register.lake.rows("documents", ["number", "currency"], where=where)
        found |= dict(zip(rows["number"].to_pylist(), rows["currency"].to_pylist(), strict=True))
    return found


# What is open.


class PaidState(StrEnum):
    """`UNKNOWN`: no payment was ever imported."""

    UNKNOWN = "unknown"
    NOTHING_DUE = "nothing due"
    OPEN = "open"
    PART_PAID = "part paid"
    PAID = "paid"
    OVERPAID = "overpaid"
    CREDIT = "credit"
    OVERDUE = "overdue"


class Balance(NamedTuple):
    """What is owed for an invoice and all its notes, and what was paid of it."""

    state: PaidState
    owed_minor: int = 0
    paid_minor: int = 0
    currency: str = ""

    @property
    def text(self) -> str:
        if self.state in {PaidState.UNKNOWN, PaidState.NOTHING_DUE, PaidState.PAID}:
            return self.state.value
        return (
            f"{self.state.value} {amount_text(abs(self.owed_minor - self.paid_minor), self.currency)} {self.currency}"
        )


def balances(register: Register, documents: Collection[IssuedDocument], now: datetime) -> dict[str, Balance]:
    """The balance of each document's invoice by the document's number. `documents`: with the notes of their invoices.

    Raises LakeError, StoreUnavailable.
    """
    lake = register.lake
    if not lake.has(_TABLE) or not sum(StoredFiles.of(lake.open(_TABLE), _TABLE).row_counts):
        return {one.number: Balance(PaidState.UNKNOWN) for one in documents}
    paid = Counter[str]()
    for part in in_parts(sorted(one.number for one in documents), _AT_ONCE):
        rows = lake.rows(_TABLE, ["document", "amount_minor"], where=[("document", "in", pa.array(part, pa.string()))])
        for row in rows.group_by("document").aggregate([("amount_minor", "sum")]).to_pylist():
            paid[row["document"]] += row["amount_minor_sum"]
    of_invoice: defaultdict[str, list[IssuedDocument]] = defaultdict(list)
    for one in documents:
        of_invoice[one.reference.number if one.reference else one.number].append(one)
    return {
        one.number: found
        for group in of_invoice.values()
        for found in [_balance(group, sum(paid[one.number] for one in group), now)]
        for one in group
    }


def balance_of(register: Register, number: str, now: datetime) -> Balance:
    """The balance of a document's invoice. Raises UnknownDocument, LakeError, StoreUnavailable."""
    key = register.document(number)[0].key
    beside = register.documents([key.payer], first_day=key.first_day, last_day=key.last_day)
    return balances(register, beside, now)[number]


def _balance(group: Collection[IssuedDocument], paid_minor: int, now: datetime) -> Balance:
    """Pure. What has no due date, such as a credit, counts at once."""
    today = now.astimezone(ZoneInfo(next(iter(group)).time_zone)).date()
    owed = sum(one.gross_minor for one in group)
    due = sum(one.gross_minor for one in group if one.due_date is None or one.due_date < today)
    if owed == paid_minor:
        state = PaidState.PAID if paid_minor else PaidState.NOTHING_DUE
    elif owed < paid_minor:
        state = PaidState.OVERPAID if paid_minor > 0 else PaidState.CREDIT
    elif due > paid_minor:
        state = PaidState.OVERDUE
    else:
        state = PaidState.PART_PAID if paid_minor else PaidState.OPEN
    return Balance(state, owed, paid_minor, next(iter(group)).currency)
