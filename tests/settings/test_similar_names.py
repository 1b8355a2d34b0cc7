"""Two names that a person does not distinguish have one reading, and no advice shows two texts that look the same."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from waybill.settings import as_read, name_advice, near_equal

ALIKE = [
    ("K\u00f6ln", "Ko\u0308ln"),
    ("\u212b", "\u00c5"),
    ("12", "12.0"),
    ("12.00", "12.0"),
    ("-3", "-3.0"),
    ("Tor 1", "Tor\u00a01"),
    ("Tor 1", "Tor  1"),
    ("Tor 1", " Tor 1 "),
    ("Hafen", "Ha\u00adfen"),
    ("Hafen", "Hafen\u200b"),
    ("Hafen", "\ufeffHafen"),
    ("Hafen", "Ha\u2060fen"),
    ("Hafen", "Hafen\ufe0f"),
    ("A-1", "A\u20111"),
    ("A-1", "A\u22121"),
    ("\ud55c", "\u1112\u1161\u11ab"),
]
SIGNS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@pytest.mark.parametrize(("one", "other"), ALIKE)
def test_names_that_look_the_same_have_one_reading(one: str, other: str) -> None:
    assert as_read(one) == as_read(other)
    assert [*near_equal([one, "x", other, one])] == [(one, other)]


@given(SIGNS)
@settings(max_examples=examples(400))
def test_a_reading_is_that_of_every_form_of_the_name_and_of_itself(name: str) -> None:
    reading = as_read(name)
    assert as_read(reading) == reading
    forms = [unicodedata.normalize(form, name) for form in ("NFC", "NFD")]
    assert {as_read(form) for form in (*forms, f" {name}\t", f"\u200b{name}", name.replace(" ", "\u00a0"))} == {reading}


@given(name=SIGNS, known=st.lists(SIGNS | st.sampled_from([one for pair in ALIKE for one in pair]), max_size=6))
@settings(max_examples=examples(400))
def test_no_advice_names_a_text_that_looks_like_the_one_that_was_given(name: str, known: list[str]) -> None:
    said = name_advice(name, known)
    if meant := re.fullmatch(r"; did you mean (?P<name>.*)\?", said, re.DOTALL):
        assert all(as_read(one) != as_read(name) for one in known if repr(one) == meant["name"])
    elif said:
        assert ascii(name) in said
