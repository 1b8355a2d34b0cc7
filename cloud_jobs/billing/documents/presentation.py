"""The texts of a document for people, in order; PDF and terminal lay them out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from cloud_jobs.billing.documents.canonical import Document
from cloud_jobs.billing.documents.document import ALL_REGIONS, DocumentType
from cloud_jobs.billing.units import Meter, amount_text, quantity_text

MAX_INCOMPLETE: Final = 20
"""The most incomplete devices of a preview that are shown; JSON and CSV have more."""
MAX_ANNEX_ENTRIES: Final = 2000
"""The most annex entries that are shown; the CSV has all."""

LINE_COLUMNS: Final = ("Line", "Item", "Vehicles", "Quantity", "Price", "Net amount")
ANNEX_COLUMNS: Final = ("Line", "Vehicle", "Item", "Quantity", "Rows", "Net amount")
INCOMPLETE_COLUMNS: Final = ("Incomplete vehicle", "What is not known")
VAT_COLUMNS: Final = ("VAT category", "Rate", "Taxable amount", "VAT")

ROUNDED: Final = (
    "Amounts are rounded once for each vehicle and price in the period, or once for all vehicles if an account pools"
    " the price. Rounded amounts are divided over zones and regions, so a line may differ from its quantity times its"
    " price by a few of the smallest units. The annex shows the part of each vehicle."
)
PROVISIONAL: Final = (
    "Provisional: the sum has what the centre had metered at that moment. What is not known counts neither as zero nor"
    " as usage. A minimum fee counts in full."
)
SIGNS: Final = {
    DocumentType.CREDIT_NOTE: "Positive amounts are credited; negative amounts are charged and reduce the credit.",
    DocumentType.DEBIT_NOTE: "Positive amounts are charged in addition to the invoice; negative amounts are credited.",
}
"""The meaning of the amounts of a note."""

Fact = tuple[str, str]
"""A label and its text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineGroup:
    """The lines of one account and region, in the columns LINE_COLUMNS, and their sum."""

    heading: str
    rows: tuple[tuple[str, ...], ...]
    net_amount: str


def heading(document: Document) -> str:
    if preview := document.get("preview"):
        return f"{preview['mark']}: provisional, as of {preview['as_of']}"
    kind = DocumentType(document["invoice_type_code"]).heading
    return f"{kind} {document['invoice_number']}" if document["invoice_number"] else f"Draft of: {kind.lower()}"


def is_draft(document: Document) -> bool:
    """A draft has no number, so nobody may ask for its amount."""
    return document["invoice_number"] is None


def watermark(document: Document) -> str:
    """The text across each page of a preview; "" for other documents."""
    return str(document["preview"]["mark"]) if "preview" in document else ""


def incomplete_rows(document: Document) -> list[tuple[str, str]]:
    """The incomplete vehicles of a preview, in the columns INCOMPLETE_COLUMNS, and why its sum may change otherwise."""
    if "preview" not in document:
        return []
    found = document["preview"]["incomplete"]
    rows = [(one["device"], "; ".join(one["reasons"])) for one in found[:MAX_INCOMPLETE]]
    rows += [("", reason) for reason in document["preview"]["reasons"]]
    more = len(found) - MAX_INCOMPLETE
    return [*rows, *([("", f"and {more:,} more vehicles; the JSON names them")] if more > 0 else [])]


def party(document: Document, role: str) -> list[str]:
    """The lines of the address of the `seller` or the `buyer`."""
    facts, address = document[role], document[role][f"{role}_postal_address"]
    city = " ".join(part for part in (address["post_code"], address["city"]) if part)
    found = [facts[f"{role}_name"], address["line"], city, address["country_code"]]
    if facts[f"{role}_vat_identifier"]:
        found.append(f"VAT id {facts[f'{role}_vat_identifier']}")
    if facts.get(f"{role}_tax_registration_identifier"):
        found.append(f"Tax registration {facts[f'{role}_tax_registration_identifier']}")
    if facts.get(f"{role}_contact_point"):
        found.append(facts[f"{role}_contact_point"])
    return found


def facts_of(document: Document) -> list[Fact]:
    period, preceding = document["invoicing_period"], document["preceding_invoice"] or {}
    start, end = period["invoicing_period_start_date"], period["invoicing_period_end_date"]
    found = [
        ("Issue date", document["invoice_issue_date"]),
        ("Due date", document["payment_due_date"]),
        ("Period", f"{start} to {end} ({period['time_zone']})"),
        ("Customer", document["buyer"]["buyer_identifier"]),
        ("Your reference", document["buyer_reference"]),
        ("Corrects invoice", preceding.get("preceding_invoice_reference")),
        ("of", preceding.get("preceding_invoice_issue_date")),
        ("Reason", document["invoice_note"]),
    ]
    return [(label, text) for label, text in found if text]


def payment(document: Document) -> list[Fact]:
    """How to pay; for a credit note, that nothing is to be paid."""
    instructions = document["payment_instructions"]
    if "preview" in document:
        return [("Payment", "Nothing is to be paid for a preview.")]
    if document["payment_terms"]:
        return [("Payment", document["payment_terms"])]
    found = [
        ("IBAN", _in_fours(instructions["payment_account_identifier"])),
        ("BIC", instructions["payment_service_provider_identifier"]),
        ("Payable to", document["seller"]["seller_name"]),
        ("Payment reference", instructions["remittance_information"]),
    ]
    return [(label, text) for label, text in found if text]


def totals(document: Document) -> list[Fact]:
    """The sums; the last one is the amount due or credited."""
    currency, found = document["invoice_currency_code"], document["document_totals"]
    credited = document["invoice_type_code"] == DocumentType.CREDIT_NOTE
    last = "Amount so far" if "preview" in document else "Amount credited" if credited else "Amount due"
    return [
        ("Total without VAT", f"{found['invoice_total_amount_without_vat']['text']} {currency}"),
        ("VAT", f"{found['invoice_total_vat_amount']['text']} {currency}"),
        (last, f"{found['amount_due_for_payment']['text']} {currency}"),
    ]


def vat_rows(document: Document) -> list[tuple[str, ...]]:
    return [
        (
            " – ".join(text for text in (vat["vat_category_code"], vat["vat_exemption_reason_text"]) if text),
            "–" if vat["vat_category_rate"] is None else f"{vat['vat_category_rate']} %",
            vat["vat_category_taxable_amount"]["text"],
            vat["vat_category_tax_amount"]["text"],
        )
        for vat in document["vat_breakdown"]
    ]


def line_groups(document: Document) -> Iterator[LineGroup]:
    for subtotal in document["subtotals"]:
        lines = document["lines"][subtotal["first_line"] - 1 : subtotal["last_line"]]
        yield LineGroup(
            heading=f"{subtotal['account_name']} · {subtotal['region'] or ALL_REGIONS}",
            rows=tuple(_line(line) for line in lines),
            net_amount=subtotal["net_amount"]["text"],
        )


def remarks(document: Document) -> list[str]:
    signs = SIGNS.get(DocumentType(document["invoice_type_code"]))
    rounded = any(line["quantity"] for line in document["lines"])
    return [
        *([PROVISIONAL] if "preview" in document else []),
        *([signs] if signs else []),
        *([ROUNDED] if rounded else []),
    ]


def annex_rows(document: Document) -> Iterator[tuple[str, ...]]:
    """The vehicles' parts of the lines, in the columns ANNEX_COLUMNS; at most MAX_ANNEX_ENTRIES."""
    line_of = {line["invoice_line_identifier"]: line for line in document["lines"]}
    for entry in document["annex"][:MAX_ANNEX_ENTRIES]:
        line = line_of[entry["line"]]
        quantity, metered = "", entry["metered"]
        if line["quantity"]:
            quantity = f"{quantity_text(Meter(line['meter']), entry['quantity_base'])} {line['quantity']['unit']}"
        yield (
            str(entry["line"]),
            f"{entry['tenant']}/{entry['device']}" if entry["device"] else line["account_name"],
            line["item_name"],
            quantity,
            str(metered["rows"]) if metered else "",
            amount_text(entry["amount_minor"], document["invoice_currency_code"]),
        )


def annex_note(document: Document) -> str | None:
    """How many entries the annex leaves out, if any."""
    hidden = len(document["annex"]) - MAX_ANNEX_ENTRIES
    return f"{hidden} more entries are in the CSV of this document." if hidden > 0 else None


def provenance(document: Document) -> str:
    """Snapshot, completeness, decisions and digest of the document."""
    certificates = document["certificates"]
    if preview := document.get("preview"):
        texts = [certificates["unknown"].capitalize(), *certificates["doubtful"]]
        vehicles = f"Vehicles: {preview['devices']}, incomplete: {len(preview['incomplete'])}"
        return ". ".join([f"Computed as of {preview['as_of']}; not stored", vehicles, *filter(None, texts)]) + "."
    states = certificates["devices_by_state"]
    devices = ", ".join(f"{count} {state}" for state, count in sorted(states.items())) or "none"
    said = certificates["unknown"].capitalize(), *certificates["doubtful"], *certificates["decisions"]
    decided = "".join(f" {words}." for words in said if words)
    return f"Computed from snapshot {document['snapshot']}. Devices: {devices}.{decided} Digest {document['digest']}."


def _line(line: Document) -> tuple[str, ...]:
    quantity = line["quantity"]
    measured = f"{quantity['text']} {quantity['unit']}" if quantity else ""
    if quantity and quantity["free_base"]:
        measured += f" (free: {quantity['free_text']})"
    return (
        str(line["invoice_line_identifier"]),
        line["item_name"],
        str(line["vehicles"] or ""),
        measured,
        line["price"],
        line["invoice_line_net_amount"]["text"],
    )


def _in_fours(iban: str) -> str:
    return " ".join(iban[at : at + 4] for at in range(0, len(iban), 4))
