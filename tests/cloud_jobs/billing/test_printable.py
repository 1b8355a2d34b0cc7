"""What contracts may be written with is what each form of a document shows."""

from __future__ import annotations

import unicodedata

import fontpkg_noto_sans
from hypothesis import given
from hypothesis import strategies as st
from reportlab.pdfbase.ttfonts import TTFont

from cloud_jobs.billing.contracts.fields import unprintable
from geo.spatial.ids import UNSHOWN

PRINTED = [chr(code) for code in range(0x110000) if unprintable(chr(code)) is None]


def test_the_font_of_the_pdf_has_each_of_them() -> None:
    font = TTFont("NotoSans", str(fontpkg_noto_sans.ROOT / "files" / "NotoSans[wdth,wght].ttf"))
    assert [sign for sign in PRINTED if ord(sign) not in font.face.charToGlyph] == []


def test_each_is_seen_and_has_a_meaning_of_its_own() -> None:
    assert [sign for sign in PRINTED if UNSHOWN.search(sign) or unicodedata.category(sign)[0] == "C"] == []


@given(st.text(alphabet=st.characters(codec="latin-1", exclude_categories=["C"])))
def test_what_western_europe_writes_is_printed(text: str) -> None:
    assert unprintable(text) is None
