"""A mistake in a settings file is named with its place and the nearest right word."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pydantic import Field

from waybill.settings import Settings, SettingsError, load, parse
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


def test_an_unknown_key_is_named_with_the_nearest_right_one_at_its_place() -> None:
    assert problems('hots = "h"') == ["hots: no such setting; did you mean 'host'?"]
    assert problems('host = "h"\n[[links]]\nprot = 5') == ["links.0.prot: no such setting; did you mean 'port'?"]
    assert problems('host = "h"\n[inner]\nzzz = 5') == ["inner.zzz: no such setting; known are port"]


class Access(Settings):
    token_file: str | None = None
    tls_ca: str | None = None
    tls_key: str | None = None


class Elsewhere(Settings):
    access: Access = Access()
    broker: Inner = Inner()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[access]\nca = "x"', "access.ca: no such setting; did you mean 'tls_ca'?"),
        ('[access]\ntoken = "x"', "access.token: no such setting; did you mean 'token_file'?"),
        ('[pulsar]\ntoken_file = "x"', "pulsar: no such setting; did you mean 'access'?"),
        ('[broker]\ntoken_file = "x"', "broker.token_file: no such setting; did you mean 'access.token_file'?"),
        ("[access]\nport = 1", "access.port: no such setting; did you mean 'broker.port'?"),
        ('[access]\ntls = "x"', "access.tls: no such setting; known are tls_ca, tls_key, token_file"),
        ("[pulsar]\n", "pulsar: no such setting; known are access, broker"),
    ],
)
def test_a_key_in_another_table_or_with_fewer_words_is_named_where_it_can_only_be_that(text: str, problem: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse(Elsewhere, text, "x.toml")
    assert caught.value.problems == [problem]


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
