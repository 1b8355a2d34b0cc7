"""Issued documents for accounting: a CSV with a row for each document and tax, or a posting batch for DATEV.

The DATEV format is that of its public description: EXTF 700, category 21 (Buchungsstapel), version 13.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple, Self

from pydantic import Field, model_validator

from cloud_jobs.billing.contracts.account import MOST_DECIMALS
from cloud_jobs.billing.contracts.fields import Currency, Id, VatCategory
from cloud_jobs.billing.documents import Document, DocumentType
from cloud_jobs.billing.register.errors import RegisterError
from cloud_jobs.billing.units import amount_text, exponent
from cloud_jobs.terminal import spreadsheet_text
from waybill.settings import Settings


class Posting(NamedTuple):
    """What a document posts for one tax; `rounding` is on its first posting alone. Amounts of credits are negative."""

    document: Document
    category: str
    rate: str | None
    net_minor: int
    tax_minor: int
    rounding_minor: int

    @property
    def gross_minor(self) -> int:
        return self.net_minor + self.tax_minor + self.rounding_minor

    @property
    def currency(self) -> str:
        return str(self.document["invoice_currency_code"])


def postings_of(head: str) -> Iterator[Posting]:
    """The postings of a document, from its head as the register stores it; their sum is the amount due."""
    document = json.loads(head)
    sign, rounding = document["posting_sign"], document["document_totals"]["rounding_amount"]
    for at, vat in enumerate(document["vat_breakdown"]):
        yield Posting(
            document,
            vat["vat_category_code"],
            vat["vat_category_rate"],
            sign * vat["vat_category_taxable_amount"]["minor"],
            sign * vat["vat_category_tax_amount"]["minor"],
            sign * rounding["minor"] if not at else 0,
        )


# CSV.

HEADER: Final = (
    "document", "type", "date", "due", "seller", "payer", "buyer", "first_day", "last_day", "vat_category", "vat_rate",
    "net", "tax", "rounding", "gross", "currency", "preceding",
)  # fmt: skip


class _Lines:
    """A file that returns each written line."""

    def write(self, line: str) -> str:
        return line


def csv_lines(postings: Iterable[Posting]) -> Iterator[str]:
    """A header and a row for each posting, as RFC 4180 has it. Texts of contracts are no formulas."""
    writer: Any = csv.writer(_Lines())
    yield writer.writerow(HEADER)
    for one in postings:
        made, currency = one.document, one.currency
        period, minor = made["invoicing_period"], (one.net_minor, one.tax_minor, one.rounding_minor, one.gross_minor)
        texts = (
            *(made["invoice_number"], made["invoice_type_code"], made["invoice_issue_date"]),
            *(made["payment_due_date"], made["seller"]["seller_identifier"], made["buyer"]["buyer_identifier"]),
            *(made["buyer"]["buyer_name"], period["invoicing_period_start_date"]),
            *(period["invoicing_period_end_date"], one.category, one.rate),
        )
        amounts = (amount_text(amount, currency) for amount in minor)
        yield writer.writerow([*map(spreadsheet_text, texts), *amounts, currency, _preceding(made)])


def _preceding(document: Document) -> str:
    preceding = document["preceding_invoice"]
    return str(preceding["preceding_invoice_reference"]) if preceding else ""


# DATEV.

_Account = Field(ge=1, le=999_999_999, strict=True)


class Revenue(Settings):
    """The revenue account of a VAT category and rate. `key`: DATEV's posting key (BU) if the account has no tax."""

    vat: VatCategory
    rate: Decimal = Decimal(0)
    account: int = _Account
    key: int | None = Field(default=None, ge=1, le=9999, strict=True)


class DatevSettings(Settings):
    """The chart of accounts of one seller in DATEV. `debtors`: payers with an account of their own."""

    legal_entity: Id
    consultant: int = Field(ge=1001, le=9_999_999, strict=True)
    client: int = Field(ge=1, le=99_999, strict=True)
    fiscal_year: date
    account_length: int = Field(default=4, ge=4, le=8, strict=True)
    currency: Currency = "EUR"
    receivables: int = _Account
    debtors: Mapping[Id, int] = Field(default_factory=dict)
    rounding: int | None = None
    revenue: tuple[Revenue, ...]

    @model_validator(mode="after")
    def _has_two_decimals(self) -> Self:
        if exponent(self.currency) > MOST_DECIMALS:
            raise ValueError(f"a posting batch has two decimals, and {self.currency} has more")
        return self


class NoAccount(RegisterError):
    """The settings name no account for a posting."""


def _numbered(*names: str, count: int) -> Iterator[str]:
    return (f"{name} {at}" for at in range(1, count + 1) for name in names)


_COLUMNS: Final = (
    "Umsatz (ohne Soll/Haben-Kz)", "Soll/Haben-Kennzeichen", "WKZ Umsatz", "Kurs", "Basis-Umsatz", "WKZ Basis-Umsatz",
    "Konto", "Gegenkonto (ohne BU-Schlüssel)", "BU-Schlüssel", "Belegdatum", "Belegfeld 1", "Belegfeld 2", "Skonto",
    "Buchungstext", "Postensperre", "Diverse Adressnummer", "Geschäftspartnerbank", "Sachverhalt", "Zinssperre",
    "Beleglink", *_numbered("Beleginfo - Art", "Beleginfo - Inhalt", count=8), "KOST1 - Kostenstelle",
    "KOST2 - Kostenstelle", "Kost-Menge", "EU-Land u. UStID (Bestimmung)", "EU-Steuersatz (Bestimmung)",
    "Abw. Versteuerungsart", "Sachverhalt L+L", "Funktionsergänzung L+L", "BU 49 Hauptfunktionstyp",
    "BU 49 Hauptfunktionsnummer", "BU 49 Funktionsergänzung",
    *_numbered("Zusatzinformation - Art", "Zusatzinformation- Inhalt", count=20), "Stück", "Gewicht", "Zahlweise",
    "Forderungsart", "Veranlagungsjahr", "Zugeordnete Fälligkeit", "Skontotyp", "Auftragsnummer", "Buchungstyp",
    "USt-Schlüssel (Anzahlungen)", "EU-Land (Anzahlungen)", "Sachverhalt L+L (Anzahlungen)",
    "EU-Steuersatz (Anzahlungen)", "Erlöskonto (Anzahlungen)", "Herkunft-Kz", "Buchungs GUID", "KOST-Datum",
    "SEPA-Mandatsreferenz", "Skontosperre", "Gesellschaftername", "Beteiligtennummer", "Identifikationsnummer",
    "Zeichnernummer", "Postensperre bis", "Bezeichnung SoBil-Sachverhalt", "Kennzeichen SoBil-Buchung",
    "Festschreibung", "Leistungsdatum", "Datum Zuord. Steuerperiode", "Fälligkeit", "Generalumkehr (GU)", "Steuersatz",
    "Land", "Abrechnungsreferenz", "BVV-Position", "EU-Land u. UStID (Ursprung)", "EU-Steuersatz (Ursprung)",
    "Abw. Skontokonto",
)  # fmt: skip
_AT: Final = {name: at for at, name in enumerate(_COLUMNS)}
_ELSEWHERE_IN_EU: Final = {VatCategory.REVERSE_CHARGE, VatCategory.INTRA_COMMUNITY}
_TEXT_LENGTH: Final = 60


class DatevBatch:
    """The postings of one seller between two days as the lines of a posting batch.

    `left_out`: the number of postings in other currencies, which a batch cannot have.
    """

    def __init__(self, settings: DatevSettings, first_day: date, last_day: date) -> None:
        """Raises NoAccount for days outside the fiscal year, because postings have no year."""
        begin = settings.fiscal_year
        if not begin <= first_day <= last_day < date(begin.year + 1, begin.month, min(begin.day, 28)):
            raise NoAccount(
                f"{first_day} to {last_day} is not within the fiscal year from {begin}; correct fiscal_year"
            )
        self.left_out = 0
        self.settings, self._days = settings, (first_day, last_day)
        self._revenue = {(one.vat.value, one.rate): one for one in settings.revenue}

    def lines(self, postings: Iterable[Posting], now: datetime) -> Iterator[str]:
        """The batch line by line, for the code page 1252. Raises NoAccount."""
        chosen, (first, last) = self.settings, self._days
        made_at = int(f"{now:%Y%m%d%H%M%S}{now.microsecond // 1000:03}")
        yield _line([
            *("EXTF", 700, 21, "Buchungsstapel", 13, made_at, None, "WB"),
            *("", "", chosen.consultant, chosen.client, _day(chosen.fiscal_year), chosen.account_length, _day(first)),
            *(_day(last), "Waybill", "", 1, 0, 0, chosen.currency, *[None] * 9),
        ])  # fmt: skip
        yield ";".join(_COLUMNS) + "\r\n"
        for one in postings:
            if one.currency != chosen.currency:
                self.left_out += 1
                continue
            number = one.document["invoice_number"]
            vat = self._revenue.get((one.category, Decimal(one.rate or 0)))
            if vat is None:
                raise NoAccount(f"{number} has VAT {one.category} {one.rate or 0}, for which `revenue` has no account")
            yield from self._posted(one, one.gross_minor - one.rounding_minor, vat.account, vat.key)
            if one.rounding_minor and chosen.rounding is None:
                raise NoAccount(f"{number} is rounded, and there is no account `rounding`")
            yield from self._posted(one, one.rounding_minor, chosen.rounding)

    def _posted(self, one: Posting, minor: int, account: int | None, key: int | None = None) -> Iterator[str]:
        """The posting of an amount to the payer's account; nothing is posted for 0."""
        if not minor:
            return
        made, row = one.document, [None] * len(_COLUMNS)
        buyer, due = made["buyer"], made["payment_due_date"]
        kind = DocumentType(made["invoice_type_code"]).heading
        facts: Mapping[str, object] = {
            "Umsatz (ohne Soll/Haben-Kz)": Decimal(amount_text(abs(minor), one.currency)),
            "Soll/Haben-Kennzeichen": "S" if minor > 0 else "H",
            "WKZ Umsatz": one.currency,
            "Konto": self.settings.debtors.get(buyer["buyer_identifier"], self.settings.receivables),
            "Gegenkonto (ohne BU-Schlüssel)": account,
            "BU-Schlüssel": f"{key}" if key else None,
            "Belegdatum": _Digits(f"{date.fromisoformat(made['invoice_issue_date']):%d%m}"),
            "Belegfeld 1": made["invoice_number"],
            "Buchungstext": " ".join(one for one in (kind, _preceding(made), buyer["buyer_name"]) if one)[
                :_TEXT_LENGTH
            ],
            "EU-Land u. UStID (Bestimmung)": buyer["buyer_vat_identifier"]
            if one.category in _ELSEWHERE_IN_EU
            else None,
            "Fälligkeit": due and _Digits(f"{date.fromisoformat(due):%d%m%Y}"),
            "Festschreibung": 0,
        }
        cells: list[object] = [*row]
        for name, value in facts.items():
            cells[_AT[name]] = value
        yield _line(cells)


class _Digits(str):
    """A date, which is not quoted, with its leading zero."""

    __slots__ = ()


def _day(day: date) -> int:
    return int(f"{day:%Y%m%d}")


def _line(cells: Sequence[object]) -> str:
    return ";".join(map(_cell, cells)) + "\r\n"


def _cell(value: object) -> str:
    match value:
        case None:
            return ""
        case _Digits():
            return value
        case Decimal():
            return f"{value:.2f}".replace(".", ",")
        case str():
            text = str(spreadsheet_text(value)).replace('"', '""')
            return f'"{text}"'
    return str(value)
