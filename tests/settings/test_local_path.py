"""A path of any settings is one of this machine, as people write it, or it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.examples import examples
from waybill.settings import PathElsewhere, Settings, local_path

REFUSED = {
    "dbfs:/lake": "begins with dbfs:",
    "hdfs://name/lake": "begins with hdfs:",
    "abfss://c@a.dfs.core.windows.net/lake": "begins with abfss:",
    "file:///srv/lake": "begins with file:",
    "s3://bucket/lake": "begins with s3:",
    "C:\\lake": "begins with C:",
    "C:/lake": "begins with C:",
    "$HOME/lake": r"has \$HOME",
    "${HOME}/lake": r"has \$\{HOME\}",
    "/srv/${NAME": r"has \$\{NAME",
    "/srv/$USER/lake": r"has \$USER",
    "~nobody-of-this-name/lake": "nobody has the home folder ~nobody-of-this-name",
    " lake": "begins or ends with a blank",
    "lake\n": "begins or ends with a blank",
    "a\0b": "is no path",
}


class Daemon(Settings):
    folder: Path
    state: Path | None = None


@pytest.mark.parametrize("text", REFUSED)
def test_what_only_looks_like_a_path_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=REFUSED[text]):
        local_path(text)
    with pytest.raises(ValidationError):
        Daemon.model_validate({"folder": "x", "state": text})


def test_a_home_folder_is_expanded_in_every_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/of-me")
    made = Daemon.model_validate({"folder": "~", "state": "~/state"})
    assert (made.folder, made.state) == (Path("/home/of-me"), Path("/home/of-me/state"))


class OfExecutors(Settings):
    python: PathElsewhere = ""


@pytest.mark.parametrize("text", ["~/bin/python", "~anna/bin/python", *REFUSED])
def test_a_path_of_other_machines_has_no_home_folder(text: str) -> None:
    assert OfExecutors(python="./python/bin/python").python == "./python/bin/python"
    with pytest.raises(ValidationError):
        OfExecutors(python=text)


NAMES = st.text(st.characters(categories=["L", "N"], include_characters="._-$ ~"), min_size=1).filter(
    lambda name: name == name.strip() and not name.startswith(("~", "$"))
)


@given(names=st.lists(NAMES, min_size=1), absolute=st.booleans())
@settings(max_examples=examples(200))
def test_any_other_path_stays_as_it_is(names: list[str], absolute: bool) -> None:
    text = "/" * absolute + "/".join(names)
    assert local_path(text) == text
