"""What a token says of its own life, and what a daemon says of the tokens that it is given."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from tests.tokens import token_file, token_text
from waybill.pulsar.pulsar_client import (
    PulsarAccess,
    TokenLife,
    TokenNotGood,
    token_life,
)

DAY_S = 86_400.0


def test_a_token_that_has_ended_is_named_with_its_role_its_file_and_its_end(tmp_path: Path) -> None:
    file = token_file(tmp_path, "jobs", ends_in_s=0)
    ended = PulsarAccess(token_file=file)
    moment = time.strftime("%Y-%m-%dT%H:%M", time.gmtime())
    with pytest.raises(TokenNotGood, match=rf"^token of jobs in {file} ended at {moment[:13]}.*ask for a new one$"):
        ended.check_token(time.time())
    token_file(tmp_path, "jobs", ends_in_s=7 * DAY_S)
    ended.check_token(time.time())


def test_a_token_that_is_not_good_yet_is_named_and_a_clock_a_minute_behind_is_not() -> None:
    access = PulsarAccess(token=SecretStr(token_text("jobs", nbf=1000, exp=9000)))
    assert "token of jobs is not good before 1970-01-01T00:16:40Z" in access.token_problem(900)
    assert access.token_problem(941) == ""
    assert "ended at 1970-01-01T02:30:00Z" in access.token_problem(9000)


@pytest.mark.parametrize(
    ("life_s", "soon_s"), [(7 * DAY_S, 1.4 * DAY_S), (365 * DAY_S, 2 * DAY_S), (3600.0, 720.0)], ids=str
)
def test_a_token_ends_soon_in_the_last_fifth_of_its_life_and_at_most_two_days_before_its_end(
    life_s: float, soon_s: float
) -> None:
    life = TokenLife("x", 0, life_s)
    assert life.ends_soon(life_s - soon_s - 1) == ""
    assert life.ends_soon(life_s - soon_s + 1).startswith("ends at ")
    assert life.ends_soon(life_s) == "", "it has ended"
    assert TokenLife("x", ends_s=life_s).ends_soon(life_s - 1) == "", "nobody knows how long it was good for"


@given(st.text(max_size=60) | st.binary(max_size=60).map(lambda body: f"a.{body!r}.b"))
def test_whatever_is_given_as_a_token_has_a_life_or_none(text: str) -> None:
    life = token_life(text)
    assert life is None or isinstance(life.problem(0), str)
