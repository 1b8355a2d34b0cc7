"""A TOML text is read in the time of its length, and no string hides what is nested too deep."""

import time
import tomllib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.settings import parse_toml

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
