"""The PDF is the same bytes for the same document, and shows every text, a character without a glyph by its number."""

from __future__ import annotations

import re
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from reportlab.platypus import Paragraph

from cloud_jobs.billing.documents import to_pdf
from cloud_jobs.billing.rating import ChargeKind, RatedAccount
from tests.cloud_jobs.billing.documents.rated import charge, fixed, issued, rated_accounts, taxed
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


@pytest.mark.parametrize("text", ["東京", "שלום", "🚚"])
def test_what_the_font_cannot_show_is_shown_by_its_number_not_left_out(text: str) -> None:
    with patch("cloud_jobs.billing.documents.pdf.Paragraph", wraps=Paragraph) as made:
        to_pdf(issued(taxed([charge(zone=text)])))
    number = f"[U+{ord(text[0]):04X}]"
    assert any(f"zone {number}" in call.args[0] for call in made.call_args_list)
