"""Each form that a person reads says how amounts were rounded, and of a note which sign is given back."""

from __future__ import annotations

import io
from collections.abc import Callable
from unittest.mock import patch

import pytest
from lxml import html
from reportlab.platypus import Paragraph
from rich.console import Console

from cloud_jobs.billing.documents import Document, DocumentType, document_table, document_to_html, to_pdf
from cloud_jobs.billing.documents.presentation import ROUNDED, SIGNS, remarks
from tests.cloud_jobs.billing.documents.rated import charge, issued, taxed


def page_text(made: Document) -> str:
    return str(html.document_fromstring(document_to_html(made)).find("body").text_content())


def table_text(made: Document) -> str:
    text = io.StringIO()
    Console(file=text, width=1000).print(document_table(made))
    return text.getvalue()


def pdf_text(made: Document) -> str:
    with patch("cloud_jobs.billing.documents.pdf.Paragraph", wraps=Paragraph) as paragraphs:
        to_pdf(made)
    return "\n".join(call.args[0] for call in paragraphs.call_args_list)


@pytest.mark.parametrize("shown", [page_text, table_text, pdf_text])
def test_each_form_has_the_remarks(shown: Callable[[Document], str]) -> None:
    note = issued(taxed([charge(amount_minor=-4500)]), DocumentType.CREDIT_NOTE)
    text = shown(note)
    assert remarks(note) == [SIGNS[DocumentType.CREDIT_NOTE], ROUNDED]
    assert [one for one in remarks(note) if one not in text] == []
