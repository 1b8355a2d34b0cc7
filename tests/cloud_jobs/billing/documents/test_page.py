"""The page about invoices says what stands in them, and shows what is made."""

import io
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

from rich.console import Console

from cloud_jobs.billing.contracts import Endpoint
from cloud_jobs.billing.documents import Document, DocumentType, document_table, to_ubl
from cloud_jobs.billing.rating import ChargeKind
from cloud_jobs.billing.units import Meter
from tests.cloud_jobs.billing.documents.rated import charge, fixed, issued, seller, taxed

LONDON = {"account": "acme-north", "region": "uk", "zone": "london", "price": "3.20 EUR/h"}


def example() -> Document:
    """Ten vehicles in a zone, with a cap, and one of a child's in another region."""
    return issued(
        taxed(
            [
                *(charge(device=f"eu-{number:04}", amount_minor=4515, quantity=100_333_000) for number in range(10)),
                fixed(-1500, ChargeKind.CAP, region="eu", tenant="fleet", device="eu-0003"),
                charge(device="uk-0001", meter=Meter.DURATION, quantity=9_000_000, amount_minor=800, **LONDON),
                fixed(2500, ChargeKind.MINIMUM),
            ]
        )
    )


PAGE = (Path(__file__).parents[4] / "docs" / "invoices.md").read_text(encoding="utf-8")
NOTE = issued(
    taxed([charge(amount_minor=-450)]),
    DocumentType.CREDIT_NOTE,
    seller=seller(endpoint=Endpoint(scheme="9930", id="DE123456789"), tax_currency="CHF"),
    tax_rate=Decimal("0.95"),
)


def names_in(value: Any) -> Iterator[str]:
    match value:
        case dict():
            for name, inner in value.items():
                yield name
                yield from names_in(inner)
        case list():
            for inner in value:
                yield from names_in(inner)


def test_every_part_of_a_document_is_explained_and_every_name_of_the_page_is_in_it() -> None:
    rows = PAGE.split("## Content\n", 1)[1].split("\n## ", 1)[0].splitlines()
    explained = {name for row in rows if row.startswith("| `") for name in re.findall(r"`(\w+)`", row)}
    assert len(explained) > 40
    assert explained - set(names_in(NOTE)) - {"free"} == set()
    assert NOTE.keys() - explained - {"format"} == set()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)\n```", PAGE, re.DOTALL)


def test_the_table_of_the_page_is_what_the_terminal_shows() -> None:
    text = io.StringIO()
    Console(file=text, width=110).print(document_table(example()))
    assert blocks("text")[0] in "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def test_the_ubl_of_the_page_is_in_the_file() -> None:
    found = blocks("xml")
    assert len(found) == 2
    assert [block for block in found if block not in to_ubl(example()).decode()] == []


def test_each_form_is_named() -> None:
    for name in ("document_table", "to_pdf", "to_csv", "to_ubl", "to_cii", "write_documents"):
        assert f"`{name}" in PAGE
