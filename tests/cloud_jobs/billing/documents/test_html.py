"""The page says what is to be paid, escapes each text, and loads and runs nothing."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from lxml import etree, html

from cloud_jobs.billing.documents import Document, document_to_html
from cloud_jobs.billing.rating import ChargeKind
from tests.cloud_jobs.billing.documents.rated import buyer, charge, fixed, issued, seller, taxed

FLEET = [*(charge(device=f"eu-{number:04}") for number in range(10)), fixed(-120, ChargeKind.DAILY_CAP, region="eu")]


def page(made: Document) -> Any:
    return html.document_fromstring(document_to_html(made))


def words(element: Any) -> str:
    return " ".join(" ".join(element.find("body").itertext()).split())


def test_the_first_page_has_all_that_is_needed_to_pay() -> None:
    text = words(page(issued(taxed(FLEET))))
    for needed in (
        "Invoice WB-000042",
        "Waybill Telematik GmbH",
        "Acme Logistics & Söhne",
        "VAT id FR40303265045",
        "2026-04-02",
        "2026-05-02",
        "2026-03-01 to 2026-03-31 (Europe/Berlin)",
        "DE02 1203 0000 0000 2020 51",
        "Amount due 534.07 EUR",
        "PO 2026-17",
    ):
        assert needed in text
    assert text.index("Amount due") < text.index("Annex")


HOSTILE = st.sampled_from(
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "{{ 7 * 7 }}",
        "&lt;b&gt;",
        "'\"><b>",
        "שלום",
        "W" * 1000,
    ]
)


@given(HOSTILE)
def test_any_text_is_shown_as_it_is_and_makes_no_element(text: str) -> None:
    made = issued(
        taxed([charge(device=text, price=text, zone=text, account="acme-north")]),
        # past the boundary: contracts have no letters that a document does not print
        seller=seller().model_copy(update={"name": text, "contact": text}),
        buyer=buyer().model_copy(update={"name": text}),
        names={"acme-north": text},
        reason=text,
    )
    found = page(made)
    plain = page(issued(taxed([charge(account="acme-north", price="x")]), seller=seller(contact="x"), reason="x"))
    assert [one.tag for one in found.iter(etree.Element)] == [one.tag for one in plain.iter(etree.Element)]
    assert sum(element.text == text for element in found.iter("bdi")) >= 4


def test_nothing_is_loaded_and_nothing_runs() -> None:
    text = document_to_html(issued(taxed(FLEET)))
    assert re.findall(r"<(?:script|link|img|iframe|object)\b|(?:src|href|\son\w+)=|url\(|@import", text) == []
    assert "default-src 'none'" in text
