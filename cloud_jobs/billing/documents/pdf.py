"""A document as PDF: the same document gives the same bytes. The font is embedded."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, Final
from xml.sax.saxutils import escape

import fontpkg_noto_sans
from reportlab.lib import colors
from reportlab.lib.pagesizes import A4
from reportlab.lib.styles import ParagraphStyle
from reportlab.lib.units import mm
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.ttfonts import TTFont
from reportlab.platypus import Flowable, PageBreak, Paragraph, SimpleDocTemplate, Spacer, Table, TableStyle

from cloud_jobs.billing.documents import presentation as show
from cloud_jobs.billing.documents.canonical import Document

_FONT: Final = "NotoSans"
_MARGIN: Final = 15 * mm
_WIDTH: Final = A4[0] - 2 * _MARGIN
_TEXT: Final = ParagraphStyle("text", fontName=_FONT, fontSize=9, leading=12, splitLongWords=1)
_NUMBER: Final = ParagraphStyle("number", _TEXT, alignment=2)
_SMALL: Final = ParagraphStyle("small", _TEXT, fontSize=7, leading=9, textColor=colors.HexColor("#555555"))
_TITLE: Final = ParagraphStyle("title", _TEXT, fontSize=16, leading=20, spaceAfter=3 * mm)
_PART: Final = ParagraphStyle("part", _TEXT, fontSize=11, leading=14, spaceBefore=4 * mm, spaceAfter=1 * mm)
_DUE: Final = ParagraphStyle("due", _NUMBER, fontSize=13, leading=17)
_LINES: Final = (0.07, 0.32, 0.1, 0.19, 0.19, 0.13)
_ANNEX: Final = (0.07, 0.28, 0.27, 0.17, 0.08, 0.13)
_PLAIN: Final = TableStyle([
    ("LINEBELOW", (0, 0), (-1, -1), 0.4, colors.HexColor("#bbbbbb")),
    ("VALIGN", (0, 0), (-1, -1), "TOP"),
    ("TOPPADDING", (0, 0), (-1, -1), 2),
    ("BOTTOMPADDING", (0, 0), (-1, -1), 2),
])  # fmt: skip


def to_pdf(document: Document) -> bytes:
    """A4 pages. A character that the font lacks is shown by its number."""
    written = io.BytesIO()
    template = SimpleDocTemplate(
        written,
        pagesize=A4,
        leftMargin=_MARGIN,
        rightMargin=_MARGIN,
        topMargin=_MARGIN,
        bottomMargin=_MARGIN,
        title=show.heading(document),
        author=document["seller"]["seller_name"],
        # otherwise the PDF contains its time of creation and a random id
        invariant=1,
    )
    _glyphs()
    mark = show.watermark(document)

    def decorate(canvas: Any, page: Any) -> None:
        _page_number(canvas, page)
        if mark:
            _watermark(canvas, mark)

    template.build([*_first_page(document), *_annex(document)], onFirstPage=decorate, onLaterPages=decorate)
    return written.getvalue()


@cache
def _glyphs() -> frozenset[int]:
    """The characters of the font; registers it on first use."""
    font = TTFont(_FONT, str(fontpkg_noto_sans.ROOT / "files" / "NotoSans[wdth,wght].ttf"))
    pdfmetrics.registerFont(font)
    return frozenset(font.face.charToGlyph)


def _paragraph(text: str, style: ParagraphStyle = _TEXT) -> Paragraph:
    glyphs = _glyphs()
    # names in contracts are printable; ids of zones and reasons may not be
    shown = (sign if ord(sign) in glyphs else f"[U+{ord(sign):04X}]" for sign in text)
    return Paragraph(escape("".join(shown)), style)


def _first_page(document: Document) -> Iterator[Flowable]:
    yield _paragraph(show.heading(document), _TITLE)
    if incomplete := show.incomplete_rows(document):
        yield _table(show.INCOMPLETE_COLUMNS, incomplete, (0.4, 0.6), left=(0, 1))
    elif show.is_draft(document) and not show.watermark(document):
        yield _paragraph("Draft. This is no demand for payment.", _PART)
    parties = [[_paragraph(text) for text in show.party(document, role)] for role in ("seller", "buyer")]
    facts = [_facts(show.facts_of(document)), _facts(show.payment(document))]
    top = TableStyle([("VALIGN", (0, 0), (-1, -1), "TOP")])
    # a row may be higher than a page: names have up to 1,000 characters
    yield Table([parties, facts], colWidths=[_WIDTH / 2] * 2, splitInRow=1, style=top)
    yield _paragraph("Total", _PART)
    totals = show.totals(document)
    rows = [[_paragraph(label), _paragraph(text, _NUMBER)] for label, text in totals[:-1]]
    rows.append([_paragraph(totals[-1][0]), _paragraph(totals[-1][1], _DUE)])
    yield Table(rows, colWidths=[_WIDTH * 0.6, _WIDTH * 0.4], style=_PLAIN)
    yield _table(show.VAT_COLUMNS, show.vat_rows(document), (0.46, 0.14, 0.2, 0.2), left=(0,))
    yield _paragraph(f"Lines ({document['invoice_currency_code']}, without VAT)", _PART)
    yield _table(show.LINE_COLUMNS, _lines(document), _LINES, left=(1, 4))
    yield Spacer(1, 3 * mm)
    for text in (*show.remarks(document), show.provenance(document)):
        yield _paragraph(text, _SMALL)


def _annex(document: Document) -> Iterator[Flowable]:
    if document["annex"]:
        yield PageBreak()
        yield _paragraph("Annex: what each vehicle's part is", _PART)
        yield _table(show.ANNEX_COLUMNS, show.annex_rows(document), _ANNEX, left=(1, 2))
        if note := show.annex_note(document):
            yield _paragraph(note)


def _lines(document: Document) -> Iterator[tuple[str, ...]]:
    for group in show.line_groups(document):
        yield ("", group.heading, "", "", "", "")
        yield from group.rows
        yield ("", "Sub-total", "", "", "", group.net_amount)


def _facts(facts: list[show.Fact]) -> list[Paragraph]:
    return [_paragraph(f"{label}: {text}") for label, text in facts]


def _table(
    columns: tuple[str, ...], rows: Iterable[tuple[str, ...]], widths: tuple[float, ...], *, left: tuple[int, ...]
) -> Table:
    cells = [
        [_paragraph(cell, _TEXT if place in left else _NUMBER) for place, cell in enumerate(row)]
        for row in (columns, *rows)
    ]
    return Table(cells, colWidths=[_WIDTH * width for width in widths], repeatRows=1, splitInRow=1, style=_PLAIN)


def _page_number(canvas: Any, template: Any) -> None:
    canvas.setFont(_FONT, 7)
    canvas.drawRightString(A4[0] - _MARGIN, _MARGIN / 2, f"{template.title} · page {canvas.getPageNumber()}")


def _watermark(canvas: Any, mark: str) -> None:
    canvas.saveState()
    canvas.setFont(_FONT, 44)
    canvas.setFillColor(colors.HexColor("#bbbbbb"), alpha=0.4)
    canvas.translate(A4[0] / 2, A4[1] / 2)
    canvas.rotate(55)
    canvas.drawCentredString(0, 0, mark)
    canvas.restoreState()
