"""A document as PDF/A-3: the same document in the same look gives the same bytes. All fonts are embedded.

An issued document carries its CII (Factur-X, ZUGFeRD), unless the published rules of EN 16931 could not take that.
"""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from hashlib import sha256
from itertools import groupby
from typing import Any, Final
from xml.sax.saxutils import escape

import fontpkg_noto_sans
from PIL import Image
from reportlab.lib import colors
from reportlab.lib.pagesizes import A4
from reportlab.lib.styles import ParagraphStyle
from reportlab.lib.units import mm
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.ttfonts import TTFError, TTFont
from reportlab.pdfgen.canvas import Canvas
from reportlab.platypus import (
    BaseDocTemplate,
    Flowable,
    Frame,
    HRFlowable,
    KeepTogether,
    PageBreak,
    PageTemplate,
    Paragraph,
    Spacer,
    Table,
    TableStyle,
)
from reportlab.platypus import Image as Picture

from cloud_jobs.billing.documents.canonical import Document, UnusableFont
from cloud_jobs.billing.documents.cii import to_cii
from cloud_jobs.billing.documents.look import PLAIN, TEXTS, Look
from cloud_jobs.billing.documents.pdf_a import make_archivable
from cloud_jobs.billing.documents.presentation import Fact, Presentation
from cloud_jobs.billing.documents.ubl import keeps_en_16931

_FONT: Final = "NotoSans"
_LABELS: Final = "NotoSansJP"
"""The characters of the Japanese texts; names are in the other fonts."""
FONT_VARIABLE: Final = "WAYBILL_DOCUMENT_FONT"
"""The environment variable of a font file with the characters that the shipped font lacks, as Chinese ones."""
_MARGIN: Final = 18 * mm
_FOOT: Final = 16 * mm
_WIDTH: Final = A4[0] - 2 * _MARGIN
_LOGO: Final = (60 * mm, 18 * mm)
_GREY: Final = colors.HexColor("#5f6368")
_RULE: Final = colors.HexColor("#d5d8dc")
_TINT: Final = colors.HexColor("#f3f5f7")
_LINES: Final = (0.06, 0.31, 0.1, 0.16, 0.24, 0.13)
_ANNEX: Final = (0.07, 0.38, 0.2, 0.13, 0.08, 0.14)
_Rows = Iterable[tuple[str, ...]]


def to_pdf(document: Document, look: Look = PLAIN) -> bytes:
    """A4 pages. A character that the fonts lack is shown by its number. Raises UnusableFont."""
    written, show = io.BytesIO(), Presentation(document, look)
    issued = document["invoice_number"] is not None and "preview" not in document
    invoice = to_cii(document, in_pdf=True) if issued and keeps_en_16931(document) else None
    _glyphs()
    template = BaseDocTemplate(
        written,
        pagesize=A4,
        title=show.heading,
        author=document["seller"]["seller_name"],
        lang=show.language.name,
        # otherwise the PDF contains its time of creation and a random id
        invariant=1,
    )
    frame = Frame(
        _MARGIN, _FOOT, _WIDTH, A4[1] - _FOOT - _MARGIN, leftPadding=0, rightPadding=0, topPadding=0, bottomPadding=0
    )
    template.addPageTemplates(PageTemplate(frames=[frame]))
    page = _Page(show, look)
    archive = partial(
        make_archivable,
        title=show.heading,
        author=document["seller"]["seller_name"],
        language=show.language.name,
        invoice=invoice,
    )
    flowables = [*page.first(document, attached=invoice is not None), *page.annex(document)]
    template.build(flowables, canvasmaker=partial(_NumberedCanvas, page=page, archive=archive, initialFontName=_FONT))
    return written.getvalue()


def undrawn(text: str) -> list[str]:
    """The characters of a text that no font has, each once. Raises UnusableFont."""
    glyphs = _glyphs()
    return [sign for sign in dict.fromkeys(text) if ord(sign) not in glyphs]


def _glyphs() -> dict[int, str]:
    return _glyphs_with(os.environ.get(FONT_VARIABLE, ""))


@cache
def _glyphs_with(given: str) -> dict[int, str]:
    """The font of each character; registers the fonts on first use. `given`: a further one. Raises UnusableFont."""
    found = _registered(_LABELS, str(TEXTS / "NotoSansJP-labels.ttf"))
    if given:
        try:
            found |= _registered(f"Names{sha256(given.encode()).hexdigest()[:8]}", given)
        except (TTFError, OSError, ValueError, struct.error) as error:
            raise UnusableFont(
                f"{FONT_VARIABLE}={given}: {error}; name a file with TrueType outlines, as DroidSansFallback.ttf of "
                "Debian's package fonts-droid-fallback"
            ) from error
    return found | _registered(_FONT, str(fontpkg_noto_sans.ROOT / "files" / "NotoSans[wdth,wght].ttf"))


def _registered(name: str, path: str) -> dict[int, str]:
    font = TTFont(name, path)
    # fonts with the same name inside would be taken for one
    font.face.name = name.encode()
    pdfmetrics.registerFont(font)
    return dict.fromkeys(font.face.charToGlyph, name)


def _runs(text: str) -> Iterator[tuple[str, str]]:
    """Pieces of a text with the font of each."""
    glyphs = _glyphs()
    # names in contracts are printable; ids of zones and reasons may not be
    shown = "".join(sign if ord(sign) in glyphs or sign == "\n" else f"[U+{ord(sign):04X}]" for sign in text)
    for font, signs in groupby(shown, lambda sign: glyphs.get(ord(sign), _FONT)):
        yield font, "".join(signs)


class _NumberedCanvas(Canvas):  # type: ignore[misc] # ReportLab has no types
    """Writes the foot of each page when their number is known, and archive data before it is saved."""

    def __init__(self, *args: Any, page: _Page, archive: Callable[[Any], None], **options: Any) -> None:
        super().__init__(*args, **options)
        self._page, self._archive = page, archive
        self._pages: list[dict[str, Any]] = []

    def showPage(self) -> None:  # noqa: N802 ReportLab's name
        self._pages.append({**self.__dict__})
        self._startPage()

    def save(self) -> None:
        for number, state in enumerate(self._pages, 1):
            self.__dict__.update(state)
            self._page.decorate(self, number, len(self._pages))
            super().showPage()
        self._archive(self._doc)
        super().save()


class _Page:
    """The parts of a page in one look."""

    def __init__(self, show: Presentation, look: Look) -> None:
        self._show, self._look = show, look
        self._say = show.language.say
        self._colour = colors.HexColor(look.colour)
        # Japanese has no spaces at which a line could break
        wrap = "CJK" if show.language.name == "ja" else None
        self._text = ParagraphStyle("text", fontName=_FONT, fontSize=8.5, leading=11.5, splitLongWords=1, wordWrap=wrap)
        self._number = ParagraphStyle("number", self._text, alignment=2)
        self._label = ParagraphStyle("label", self._text, fontSize=7.5, leading=10, textColor=_GREY)
        self._small = ParagraphStyle("small", self._text, fontSize=7, leading=9.5, textColor=_GREY, spaceAfter=1.5 * mm)
        self._title = ParagraphStyle("title", self._text, fontSize=18, leading=23)
        self._seller = ParagraphStyle("seller", self._text, fontSize=13, leading=17, alignment=2)
        self._part = ParagraphStyle(
            "part", self._text, fontSize=10.5, leading=14, spaceBefore=5 * mm, spaceAfter=1 * mm
        )
        self._name = ParagraphStyle("name", self._text, fontSize=10, leading=13.5)
        self._due_label = ParagraphStyle("due label", self._text, fontSize=10, leading=14)
        self._due = ParagraphStyle("due", self._number, fontSize=15, leading=19)

    def first(self, document: Document, *, attached: bool) -> Iterator[Flowable]:
        show = self._show
        yield from self._head()
        if incomplete := show.incomplete_rows:
            yield self._table(show.incomplete_columns, incomplete, (0.4, 0.6), left=(0, 1))
            yield Spacer(1, 3 * mm)
        elif show.draft_note:
            yield self._paragraph(show.draft_note, self._part)
        yield self._parties()
        yield Spacer(1, 5 * mm)
        yield self._amount_due()
        yield self._paragraph(self._say("line.title", currency=document["invoice_currency_code"]), self._part)
        yield self._lines()
        yield Spacer(1, 3 * mm)
        yield self._sums()
        yield KeepTogether(
            [self._paragraph(self._say("payment.title"), self._part), self._facts(show.payment, _WIDTH, label=0.22)]
        )
        yield Spacer(1, 5 * mm)
        for text in (*show.remarks, *show.provenance, *([self._say("source.attached")] if attached else [])):
            yield self._paragraph(text, self._small)

    def annex(self, document: Document) -> Iterator[Flowable]:
        show = self._show
        if not document["annex"]:
            return
        yield PageBreak()
        yield self._paragraph(self._say("annex.title"), self._part)
        rows, heads, sums = list[tuple[str, ...]](), list[int](), list[int]()
        for part in show.annex:
            heads.append(len(rows) + 1)
            rows += [("", part.name, "", "", "", part.net_amount), *part.rows]
        if not show.annex_note:
            label, _ = show.totals[0]
            net = document["document_totals"]["invoice_total_amount_without_vat"]["text"]
            rows.append(("", label, "", "", "", show.language.number(net)))
            sums.append(len(rows))
        yield self._table(show.annex_columns, rows, _ANNEX, left=(1,), heads=heads, sums=sums)
        if show.annex_note:
            yield Spacer(1, 2 * mm)
            yield self._paragraph(show.annex_note)

    def decorate(self, canvas: Canvas, number: int, count: int) -> None:
        """The foot and, on a preview, the watermark."""
        canvas.setStrokeColor(self._colour)
        canvas.setLineWidth(0.8)
        canvas.line(_MARGIN, _FOOT - 3 * mm, A4[0] - _MARGIN, _FOOT - 3 * mm)
        name, *_, last = self._show.party("seller")
        for text, style in (
            (f"{name} · {last}", self._label),
            (
                self._say("page.number", title=self._show.heading, number=number, count=count),
                ParagraphStyle("page", self._label, alignment=2),
            ),
        ):
            foot = self._paragraph(text[:160], style)
            _, height = foot.wrapOn(canvas, _WIDTH / 2 - 2 * mm, _FOOT)
            at = _MARGIN + (_WIDTH / 2 + 2 * mm if style.alignment else 0)
            foot.drawOn(canvas, at, _FOOT - 4 * mm - height)
        if mark := self._show.watermark:
            _watermark(canvas, mark)

    # Parts of the first page.

    def _head(self) -> Iterator[Flowable]:
        """Heading on the left, logo or name of the seller on the right, a line in the seller's colour."""
        right: Flowable = self._paragraph(self._show.party("seller")[0], self._seller)
        if self._look.logo is not None:
            right = _logo(self._look.logo)
        yield self._side_by_side(self._paragraph(self._show.heading, self._title), right, (0.55, 0.45), bottom=True)
        yield HRFlowable("100%", 2, color=self._colour, spaceBefore=2 * mm, spaceAfter=4 * mm)

    def _parties(self) -> Flowable:
        show = self._show
        seller, buyer = (
            [self._paragraph(self._say(f"party.{role}"), self._label), self._paragraph(name, self._name)]
            + [self._paragraph(line) for line in lines]
            for role in ("seller", "buyer")
            for name, *lines in [show.party(role)]
        )
        return Table(
            [[buyer, seller, self._facts(show.facts, _WIDTH * 0.42, label=0.42)]],
            colWidths=[_WIDTH * 0.3, _WIDTH * 0.28, _WIDTH * 0.42],
            # a row may be higher than a page: names have up to 1,000 characters
            splitInRow=1,
            style=TableStyle([*_TIGHT, ("RIGHTPADDING", (0, 0), (1, 0), 4 * mm)]),
        )

    def _amount_due(self) -> Flowable:
        label, text = self._show.due
        return Table(
            [[self._paragraph(label, self._due_label), self._paragraph(text, self._due)]],
            colWidths=[_WIDTH * 0.6, _WIDTH * 0.4],
            style=TableStyle([
                ("BACKGROUND", (0, 0), (-1, -1), _TINT),
                ("LINEBEFORE", (0, 0), (0, -1), 2.5, self._colour),
                ("VALIGN", (0, 0), (-1, -1), "MIDDLE"),
                ("TOPPADDING", (0, 0), (-1, -1), 5),
                ("BOTTOMPADDING", (0, 0), (-1, -1), 7),
            ]),
        )  # fmt: skip

    def _lines(self) -> Flowable:
        rows, heads, sums = list[tuple[str, ...]](), list[int](), list[int]()
        for group in self._show.line_groups:
            heads.append(len(rows) + 1)
            rows += [("", group.heading, "", "", "", ""), *group.rows]
            sums.append(len(rows) + 1)
            rows.append(("", self._say("line.subtotal"), "", "", "", group.net_amount))
        return self._table(self._show.line_columns, rows, _LINES, left=(1, 4), heads=heads, sums=sums)

    def _sums(self) -> Flowable:
        show = self._show
        *others, (label, text) = show.totals
        rows = [[self._paragraph(one), self._paragraph(amount, self._number)] for one, amount in others]
        rows.append(
            [self._paragraph(label, self._name), self._paragraph(text, ParagraphStyle("", self._number, fontSize=10))]
        )
        sums = Table(
            rows,
            colWidths=[_WIDTH * 0.2, _WIDTH * 0.22],
            style=TableStyle([*_ROWS, ("LINEABOVE", (0, -1), (-1, -1), 1, self._colour)]),
        )
        vat = self._table(show.vat_columns, show.vat_rows, (0.22, 0.08, 0.14, 0.1), left=(0,))
        return KeepTogether([self._side_by_side(vat, sums, (0.57, 0.43))])

    # Building blocks.

    def _paragraph(self, text: str, style: ParagraphStyle | None = None) -> Paragraph:
        pieces = (
            escape(signs) if font == _FONT else f'<font name="{font}">{escape(signs)}</font>'
            for font, signs in _runs(text)
        )
        return Paragraph("".join(pieces).replace("\n", "<br/>"), style or self._text)

    def _facts(self, facts: list[Fact], width: float, *, label: float) -> Flowable:
        rows = [[self._paragraph(name, self._label), self._paragraph(text)] for name, text in facts]
        widths = [width * label, width * (1 - label)]
        return Table(rows, colWidths=widths, splitInRow=1, style=TableStyle(_TIGHT), hAlign="LEFT")

    def _side_by_side(
        self, one: Flowable, other: Flowable, widths: tuple[float, float], *, bottom: bool = False
    ) -> Flowable:
        style = TableStyle([*_TIGHT, ("ALIGN", (1, 0), (1, 0), "RIGHT"), *([_BOTTOM] if bottom else [])])
        return Table([[one, other]], colWidths=[_WIDTH * width for width in widths], style=style, splitInRow=1)

    def _table(
        self,
        columns: tuple[str, ...],
        rows: _Rows,
        widths: tuple[float, ...],
        *,
        left: tuple[int, ...],
        heads: Iterable[int] = (),
        sums: Iterable[int] = (),
    ) -> Flowable:
        """`left`: the columns that are not numbers. `heads`, `sums`: rows (from 1) that begin or end a group."""
        right = ParagraphStyle("right", self._label, alignment=2)
        cells = [[self._paragraph(one, self._label if at in left else right) for at, one in enumerate(columns)]]
        cells += [
            [self._paragraph(cell, self._text if at in left else self._number) for at, cell in enumerate(row)]
            for row in rows
        ]
        style = [
            *_ROWS,
            ("LINEBELOW", (0, 0), (-1, 0), 0.8, self._colour),
            *(("BACKGROUND", (0, at), (-1, at), _TINT) for at in heads),
            # between a number and a text
            *(("LEFTPADDING", (at, 0), (at, -1), 9) for at in left if at > 1),
            *(("NOSPLIT", (0, at), (-1, at + 1)) for at in heads),
            *(("SPAN", (1, at), (-2, at)) for at in (*heads, *sums)),
            *(("LINEBELOW", (0, at), (-1, at), 0.8, _GREY) for at in sums),
        ]
        return Table(
            cells,
            colWidths=[_WIDTH * width for width in widths],
            repeatRows=1,
            splitInRow=1,
            style=TableStyle(style),
            hAlign="LEFT",
        )


_TIGHT: Final[list[tuple[Any, ...]]] = [
    ("VALIGN", (0, 0), (-1, -1), "TOP"),
    ("LEFTPADDING", (0, 0), (-1, -1), 0),
    ("RIGHTPADDING", (0, 0), (-1, -1), 0),
    ("TOPPADDING", (0, 0), (-1, -1), 0.5),
    ("BOTTOMPADDING", (0, 0), (-1, -1), 0.5),
]
_BOTTOM: Final = ("VALIGN", (0, 0), (-1, -1), "BOTTOM")
_ROWS: Final[list[tuple[Any, ...]]] = [
    ("VALIGN", (0, 0), (-1, -1), "TOP"),
    ("LINEBELOW", (0, 0), (-1, -1), 0.4, _RULE),
    ("LEFTPADDING", (0, 0), (-1, -1), 3),
    ("RIGHTPADDING", (0, 0), (-1, -1), 3),
    ("TOPPADDING", (0, 0), (-1, -1), 2),
    ("BOTTOMPADDING", (0, 0), (-1, -1), 3),
]


def _logo(content: bytes) -> Flowable:
    """The picture on white, as large as fits: some readers of archives show no transparency."""
    with Image.open(io.BytesIO(content)) as opened:
        picture = opened.convert("RGBA")
    white = Image.new("RGBA", picture.size, "white")
    white.alpha_composite(picture)
    scale = min(_LOGO[0] / picture.width, _LOGO[1] / picture.height)
    written = io.BytesIO()
    white.convert("RGB").save(written, "PNG")
    return Picture(written, picture.width * scale, picture.height * scale, hAlign="RIGHT")


def _watermark(canvas: Canvas, mark: str) -> None:
    canvas.saveState()
    canvas.setFillColor(colors.HexColor("#bbbbbb"), alpha=0.4)
    canvas.translate(A4[0] / 2, A4[1] / 2)
    canvas.rotate(55)
    size = 44
    while (width := sum(pdfmetrics.stringWidth(signs, font, size) for font, signs in _runs(mark))) > A4[1] * 0.85:
        size -= 2
    at = -width / 2
    for font, signs in _runs(mark):
        canvas.setFont(font, size)
        canvas.drawString(at, 0, signs)
        at += pdfmetrics.stringWidth(signs, font, size)
    canvas.restoreState()
