"""The table in the terminal has lines, sub-totals, tax and the sum, and shows texts as they are."""

from __future__ import annotations

import io

from rich.console import Console

from cloud_jobs.billing.documents import Document, document_table
from cloud_jobs.billing.rating import ChargeKind
from tests.cloud_jobs.billing.documents.rated import charge, fixed, issued, taxed


def shown(made: Document) -> str:
    text = io.StringIO()
    Console(file=text, width=200).print(document_table(made))
    return text.getvalue()


def test_the_table_has_lines_subtotals_tax_and_the_sum() -> None:
    text = shown(issued(taxed([charge(), charge(device="eu-0002"), fixed(-120, ChargeKind.DAILY_CAP, region="eu")])))
    for needed in (
        "Invoice WB-000042",
        "200.000000 km",
        "0.45 EUR/km",
        "90.00",
        "-1.20",
        "88.80",
        "19 %",
        "105.67 EUR",
    ):
        assert needed in text
