"""The forms of a document: name, file and bytes of each."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from cloud_jobs.billing.documents.canonical import Document, NotWritten, canonical_pieces
from cloud_jobs.billing.documents.cii import to_cii
from cloud_jobs.billing.documents.look import ENGLISH, PLAIN, Look
from cloud_jobs.billing.documents.presentation import Presentation
from cloud_jobs.billing.documents.ubl import to_ubl
from cloud_jobs.billing.rating import signed_parts
from cloud_jobs.billing.units import MEASURE_OF, Meter, amount_text, quantity_text
from cloud_jobs.terminal import Column, FittedTable, spreadsheet_text
from waybill.daemon.durable_file import create_durably

# A document as Rich tables.


def document_table(document: Document, look: Look = ENGLISH) -> RenderableType:
    """Parties and dates, lines with sub-totals, tax and totals; no annex. In English: other tables are, too."""
    show = Presentation(document, look)
    small = (Text(text, style="dim") for text in (*show.remarks, *show.provenance))
    incomplete = [_incomplete(show)] if show.incomplete_rows else []
    return Group(_facts(show), _lines(show), _totals(show), *incomplete, *small)


def _incomplete(show: Presentation) -> FittedTable:
    table = FittedTable(*map(Column.text, show.incomplete_columns))
    for row in show.incomplete_rows:
        table.add(*row)
    return table


def _facts(show: Presentation) -> FittedTable:
    table = FittedTable(Column.text(""), Column.text(""), title=show.heading)
    for role in ("seller", "buyer"):
        table.add(show.language.say(f"party.{role}"), ", ".join(show.party(role)))
    for label, text in (*show.facts, *show.payment):
        table.add(label, text)
    return table


def _lines(show: Presentation) -> FittedTable:
    number, item, vehicles, quantity, price, amount = show.line_columns
    table = FittedTable(
        Column.number(number),
        Column.text(item),
        Column.number(vehicles),
        Column(quantity, right=True, folds=True),
        Column.text(price),
        Column.number(amount),
    )
    for group in show.line_groups:
        table.add("", Text(group.heading, style="bold"))
        for row in group.rows:
            table.add(*row)
        table.add("", show.language.say("line.subtotal"), "", "", "", Text(group.net_amount, style="bold"))
        table.add_section()
    return table


def _totals(show: Presentation) -> FittedTable:
    table = FittedTable(Column.text(""), Column.number(""), title=show.watermark)
    for category, rate, taxable, tax in show.vat_rows:
        table.add(show.language.say("total.vat_line", category=category, rate=rate, amount=taxable), tax)
    table.add_section()
    for label, text in show.totals:
        table.add(label, Text(text, style="bold"))
    return table


# A document as CSV.

COLUMNS: Final = (
    "invoice_number", "invoice_type_code", "line", "account", "region", "tenant", "device", "kind", "meter", "zone",
    "window", "price", "quantity", "unit", "quantity_base", "base_unit", "free_base", "posted_amount", "currency",
    "vat_category", "vat_rate", "metered_rows", "first_hour", "last_hour", "metered_digest", "parts", "gross_amount",
)  # fmt: skip


PREVIEW_COLUMNS: Final = ("preview", *COLUMNS)
"""The columns of a preview: its mark, the moment, and why a vehicle is incomplete stand first in each row."""
_NUMERIC: Final = frozenset({
    "quantity", "quantity_base", "free_base", "posted_amount", "gross_amount",
})  # fmt: skip


def to_csv(document: Document) -> Iterator[bytes]:
    """One row for each entry of the annex, with the header COLUMNS; UTF-8 with CRLF (RFC 4180).

    A preview has the header PREVIEW_COLUMNS, and after the others a row without amounts for each incomplete vehicle.
    """
    if "preview" not in document:
        return _written(COLUMNS, _rows(document))
    return _written(PREVIEW_COLUMNS, _preview_rows(document))


def _preview_rows(document: Document) -> Iterator[dict[str, Any]]:
    preview = document["preview"]
    mark = f"{preview['mark']}, as of {preview['as_of']}"
    # 380 is an invoice
    yield from ({"preview": mark, **row, "invoice_type_code": None} for row in _rows(document))
    for one in preview["incomplete"]:
        tenant, _, device = one["device"].partition("/")
        unknown = {"tenant": tenant, "device": device, "kind": "incomplete"}
        yield dict.fromkeys(COLUMNS) | unknown | {"preview": f"{mark}: {'; '.join(one['reasons'])}"}


class _Lines:
    """A file that returns each written line."""

    def write(self, line: str) -> bytes:
        return line.encode()


def _written(columns: tuple[str, ...], rows: Iterable[dict[str, Any]]) -> Iterator[bytes]:
    writer: Any = csv.DictWriter(_Lines(), columns)
    yield writer.writeheader()
    for row in rows:
        yield writer.writerow({name: _cell(name, value) for name, value in row.items()})


def _cell(column: str, value: Any) -> Any:
    return value if column in _NUMERIC else spreadsheet_text(value)


def _entries(document: Document) -> Iterator[tuple[Document, Document]]:
    line_of = {line["invoice_line_identifier"]: line for line in document["lines"]}
    return ((line_of[entry["line"]], entry) for entry in document["annex"])


def _rows(document: Document) -> Iterator[dict[str, Any]]:
    sign, currency = document["posting_sign"], document["invoice_currency_code"]
    for line, entry in _entries(document):
        quantity, metered = sign * entry["quantity_base"], entry["metered"] or {}
        yield {
            "invoice_number": document["invoice_number"],
            "invoice_type_code": document["invoice_type_code"],
            **{name: line[name] for name in ("account", "region", "kind", "meter", "zone", "window", "price")},
            **{name: entry[name] for name in ("line", "tenant", "device")},
            **_quantities(line, quantity),
            "free_base": sign * entry["free_base"] if line["quantity"] else None,
            "posted_amount": amount_text(sign * entry["amount_minor"], currency),
            "currency": currency,
            "vat_category": line["invoiced_item_vat_category_code"],
            "vat_rate": line["invoiced_item_vat_rate"],
            "metered_rows": metered.get("rows"),
            "first_hour": metered.get("first_hour"),
            "last_hour": metered.get("last_hour"),
            "metered_digest": metered.get("digest"),
            "parts": signed_parts(entry.get("parts"), sign),
            "gross_amount": amount_text(sign * entry["gross_minor"], currency) if "gross_minor" in entry else None,
        }


def _quantities(line: Document, quantity: int) -> dict[str, Any]:
    if line["quantity"] is None:
        return {"quantity": None, "unit": None, "quantity_base": None, "base_unit": None}
    measure = MEASURE_OF[Meter(line["meter"])]
    return {
        "quantity": quantity_text(Meter(line["meter"]), quantity, line["quantity"]["unit"]),
        "unit": line["quantity"]["unit"],
        "quantity_base": quantity,
        "base_unit": measure.base,
    }


# Atomic writing of document files into one folder, without overwriting.

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""File names without folders, and not hidden."""


def write_documents(folder: Path, files: Mapping[str, bytes | Iterable[bytes]]) -> None:
    """Creates the folder if necessary, and new files in it. Raises NotWritten.

    After an error none of them exists; after a power cut some may exist, each complete. The folder may be a link; a
    file whose name is taken, also by a link, is not written.
    """
    for name in files:
        if not _NAME.fullmatch(name):
            raise NotWritten(f"{name!r} is not a file name: use letters, digits, dots, dashes and underscores")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if taken := sorted(name for name in files if os.path.lexists(folder / name)):
            raise NotWritten(f"{folder} has {', '.join(taken)} already; nothing was written")
        for name, content in files.items():
            if not create_durably(folder / name, content):
                raise NotWritten(f"another process wrote {name} to {folder} meanwhile")
    except OSError as error:
        raise NotWritten(f"not all files could be written into {folder}: {error}") from error


def to_pdf(document: Document, look: Look = PLAIN) -> bytes:
    """See `pdf`. Raises UnusableFont."""
    from cloud_jobs.billing.documents.pdf import to_pdf as made  # noqa: PLC0415

    return made(document, look)


class Form(StrEnum):
    JSON = "json"
    PDF = "pdf"
    CSV = "csv"
    UBL = "ubl"
    CII = "cii"


def _json(document: Document, _: Look) -> Iterator[bytes]:
    for piece in canonical_pieces(document):
        yield piece.encode()
    yield b"\n"


_MADE: Final[Mapping[Form, tuple[str, Callable[[Document, Look], Iterable[bytes]]]]] = {
    Form.JSON: (".json", _json),
    Form.PDF: (".pdf", lambda document, look: [to_pdf(document, look)]),
    Form.CSV: (".csv", lambda document, _: to_csv(document)),
    Form.UBL: (".xml", lambda document, _: [to_ubl(document)]),
    Form.CII: (".cii.xml", lambda document, _: [to_cii(document)]),
}


@dataclass(frozen=True, slots=True)
class DocumentContent:
    """The bytes of a document in one form, generated piece by piece on each iteration: the whole may not fit in memory.

    `look` changes the PDF alone. Iterating raises NotIssued for the UBL or CII of a draft, before the first piece.
    """

    document: Document
    form: Form
    look: Look = PLAIN

    def __iter__(self) -> Iterator[bytes]:
        return iter(_MADE[self.form][1](self.document, self.look))

    def __bytes__(self) -> bytes:
        return b"".join(self)


def files_of(document: Document, forms: Collection[Form], look: Look = PLAIN) -> dict[str, DocumentContent]:
    """The files of a document by name: its number, or payer and moment of a preview, and the suffix of each form."""
    return {f"{_file_name(document)}{_MADE[form][0]}": DocumentContent(document, form, look) for form in forms}


def _file_name(document: Document) -> str:
    if "preview" not in document:
        return str(document["invoice_number"])
    moment = str(document["preview"]["as_of"]).translate({ord(one): None for one in "-:."})
    return f"PREVIEW-{document['buyer']['buyer_identifier']}-{moment}"
