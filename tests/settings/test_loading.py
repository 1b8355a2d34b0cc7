"""A mistake in a settings file is named with its place and the nearest right word."""

import re
import time
import tomllib
import unicodedata
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field

from tests.examples import examples
from waybill.settings import Settings, SettingsError, as_read, load, name_advice, near_equal, nearest, parse, parse_toml
from waybill.settings.loading import MAX_PROBLEMS


class Inner(Settings):
    port: int = 1883


class Outer(Settings):
    host: str
    links: tuple[Inner, ...] = ()
    inner: Inner | None = None


def problems(text: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        parse(Outer, text, "x.toml")
    return caught.value.problems


def test_settings_are_read_and_frozen(tmp_path: Path) -> None:
    path = tmp_path / "outer.toml"
    path.write_text('host = "h"\n[[links]]\nport = 5\n')
    assert load(Outer, path) == Outer(host="h", links=(Inner(port=5),))


def test_a_file_that_begins_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    """Windows editors write one."""
    path = tmp_path / "outer.toml"
    path.write_text('\ufeffhost = "h"\n[[links]]\nport = 5\n', encoding="utf-8")
    assert load(Outer, path) == Outer(host="h", links=(Inner(port=5),))


def test_an_unknown_key_is_named_with_the_nearest_right_one_at_its_place() -> None:
    assert problems('hots = "h"') == ["hots: no such setting; did you mean 'host'?"]
    assert problems('host = "h"\n[[links]]\nprot = 5') == ["links.0.prot: no such setting; did you mean 'port'?"]
    assert problems('host = "h"\n[inner]\nzzz = 5') == ["inner.zzz: no such setting; known are port"]
    # one letter is another word
    assert problems('host = "h"\n[inner]\nfort = 5') == ["inner.fort: no such setting; known are port"]


def test_every_mistake_is_listed_at_once() -> None:
    assert len(problems('host = 5\ninner = { port = "x" }\nwrong = 1')) == 3


def test_a_text_that_is_no_toml_and_a_file_that_is_not_there_are_said_so(tmp_path: Path) -> None:
    assert "is not valid TOML" in problems("= 5")[0]
    with pytest.raises(SettingsError, match=r"none\.toml: cannot be read"):
        load(Outer, tmp_path / "none.toml")


class Group(Settings):
    members: tuple[str, ...] = Field(min_length=1)


class Groups(Settings):
    groups: tuple[Group, ...] = Field(min_length=2)


def test_a_file_full_of_mistakes_is_refused_in_a_time_that_grows_with_it_alone() -> None:
    text = "groups = [" + "{members = []}, " * 6_000 + "]"
    start = time.process_time()
    with pytest.raises(SettingsError) as caught:
        parse(Groups, text, "x.toml")
    assert time.process_time() - start < 2.0  # 0.2 s; to hold each mistake against each other takes 10 s
    assert len(caught.value.problems) == MAX_PROBLEMS


SIZE = 65_000
UNITS = (
    '\\"""\n',
    '"""',
    "'''",
    '"',
    "'",
    '\\"',
    '"\\',
    '""',
    "#",
    "[",
    "{",
    ".",
    ",",
    "\n",
    "a.",
    "[[a]]\n",
    'a="""',
    "\\",
)
PIECES = ('"', '""', '"""', "'", "'''", "\\", "\\\\", "[", "]", "{", "}", "#", ".", ",", "\n", "a=", "b=", "1", "é")
TOO_DEEP = "[" * 17 + "]" * 17


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("opened", ["", "x=[", 'x="""', "x='''", 'x="'])
def test_no_text_takes_more_than_the_time_of_its_length(opened: str, unit: str) -> None:
    text = opened + unit * (SIZE // len(unit))
    taken_s = []
    for _ in range(2):
        before_s = time.process_time()
        with suppress(ValueError):
            parse_toml(text)
        taken_s.append(time.process_time() - before_s)
    assert min(taken_s) < 0.25, "about 0.03 s on an idle core; what is read twice takes seconds"


@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
def test_what_the_parser_takes_is_taken_and_what_follows_is_still_seen(text: str) -> None:
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        with pytest.raises(ValueError, match=r"."):
            parse_toml(text)
        return
    assert parse_toml(text) == tables
    with pytest.raises(ValueError, match="nested deeper"):
        parse_toml(f"{text}\nzz={TOO_DEEP}")


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


@pytest.mark.parametrize("name", ["eu", "EU", "euu"])
def test_a_slip_of_the_pen_or_of_the_shift_key_is_seen(name: str) -> None:
    assert nearest(name, ["us", "eu"]) == "eu"


@pytest.mark.parametrize("name", ["mars", "", "kaze", "e" * 1000])
def test_what_is_like_none_of_them_means_none_of_them(name: str) -> None:
    assert (nearest(name, ["us", "eu", "fleet"]), name_advice(name, ["us", "eu", "fleet"])) == ("", "")


def test_the_same_case_is_nearer_than_the_same_letters() -> None:
    assert nearest("NO", ["on", "no"]) == "no"
