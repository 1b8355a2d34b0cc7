"""The PDF is the same bytes for the same document, and shows every text, a character without a glyph by its number."""

from __future__ import annotations

import re
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from reportlab.platypus import Paragraph

from cloud_jobs.billing.contracts import Address
from cloud_jobs.billing.documents import presentation, to_pdf
from cloud_jobs.billing.rating import ChargeKind, RatedAccount
from tests.cloud_jobs.billing.documents.rated import buyer, charge, fixed, issued, rated_accounts, seller, taxed
from tests.cloud_jobs.billing.documents.test_document import KINDS, document_of

FLEET = [*(charge(device=f"eu-{number:04}") for number in range(10)), fixed(-120, ChargeKind.DAILY_CAP, region="eu")]


def pages(content: bytes) -> int:
    return int(re.findall(rb"/Count (\d+)", content)[0])


def test_it_is_a_pdf_with_its_annex_on_a_page_of_its_own() -> None:
    content = to_pdf(issued(taxed(FLEET)))
    assert content.startswith(b"%PDF-")
    assert content.endswith(b"%%EOF\n")
    assert pages(content) == 2


@settings(max_examples=10)
@given(rated_accounts(), KINDS)
def test_the_same_document_gives_the_same_bytes(rated: RatedAccount, kind: object) -> None:
    assert to_pdf(document_of(rated)) == to_pdf(document_of(rated))


def test_the_font_is_in_it() -> None:
    content = to_pdf(issued(taxed(FLEET)))
    fonts = set(re.findall(rb"/BaseFont /([\w+-]+)", content))
    assert b"/FontFile2" in content
    # the library names Helvetica in every file, also where nothing is set in it
    assert {font.partition(b"+")[2] for font in fonts - {b"Helvetica"}} == {b"NotoSans-Regular"}


@pytest.mark.parametrize("text", ["Łódź Żółw", "Ελληνικά", "Србија", "Cộng hòa", "Müller & <Söhne>", "W" * 1000])
def test_names_of_europe_and_long_ones_are_shown(text: str) -> None:
    assert to_pdf(issued(taxed([charge(device="d" * 256)]), buyer=buyer(name=text))).startswith(b"%PDF-")


def test_texts_that_are_longer_than_a_page_are_shown() -> None:
    text = "W" * 1000
    address = Address(line=text, city=text, country="DE")
    made = issued(
        taxed([charge(price=text, zone=text, account="acme-north")]),
        seller=seller(name=text, address=address, contact=text),
        buyer=buyer(name=text),
        names={"acme-north": text},
        reason=text,
    )
    assert pages(to_pdf(made)) >= 3


@pytest.mark.parametrize("text", ["東京", "שלום", "🚚"])
def test_what_the_font_cannot_show_is_shown_by_its_number_not_left_out(text: str) -> None:
    with patch("cloud_jobs.billing.documents.pdf.Paragraph", wraps=Paragraph) as made:
        to_pdf(issued(taxed([charge(zone=text)])))
    number = f"[U+{ord(text[0]):04X}]"
    assert any(f"zone {number}" in call.args[0] for call in made.call_args_list)


def test_an_annex_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    many = issued(taxed([charge(device=f"eu-{number:04}") for number in range(200)]))
    whole = pages(to_pdf(many))
    monkeypatch.setattr(presentation, "MAX_ANNEX_ENTRIES", 10)
    assert pages(to_pdf(many)) == 2 < whole
