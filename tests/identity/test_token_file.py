"""A token's file, where several commands write into one folder."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from waybill.identity.claims import make_token
from waybill.identity.errors import NameRefused
from waybill.identity.token_files import create_token_file, remove_token_file, take_token_file


def test_what_a_command_made_it_removes_and_what_another_one_took_stays(tmp_path: Path) -> None:
    file, token = tmp_path / "new.token", make_token()
    assert create_token_file(file, token)
    remove_token_file(file, token)
    assert not file.exists()
    assert create_token_file(file, token)
    assert take_token_file(file) == token
    remove_token_file(file, token)
    assert file.stat().st_mode & 0o777 == 0o400
    assert take_token_file(file) == token, "and may be taken again"


@pytest.mark.parametrize("kind", ["another token", "a folder", "a link", "nothing", "no folder"])
def test_what_is_not_the_token_that_was_made_is_not_removed(tmp_path: Path, kind: str) -> None:
    file, other = tmp_path / "in" / "new.token", tmp_path / "other"
    if kind != "no folder":
        file.parent.mkdir()
    token = make_token()
    if kind == "another token":
        create_token_file(file, make_token())
    elif kind == "a folder":
        file.mkdir()
    elif kind == "a link":
        create_token_file(other, token)
        file.symlink_to(other)
    before = sorted(tmp_path.rglob("*"))
    remove_token_file(file, token)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_file_that_is_no_token_is_not_marked(tmp_path: Path) -> None:
    file = tmp_path / "notes"
    for content in (b"my notes", b"\xff\xfe"):
        file.write_bytes(content)
        file.chmod(0o600)
        with pytest.raises(NameRefused):
            take_token_file(file)
        assert file.stat().st_mode & 0o777 == 0o600


def test_of_who_takes_a_file_and_who_removes_it_at_once_one_is_first(tmp_path: Path) -> None:
    for number in range(200):
        file, token, taken = tmp_path / f"{number}.token", make_token(), list[bool]()
        create_token_file(file, token)

        def take(file: Path = file, taken: list[bool] = taken) -> None:
            try:
                take_token_file(file)
            except FileNotFoundError:
                taken.append(False)
            else:
                taken.append(True)

        other = threading.Thread(target=take)
        other.start()
        remove_token_file(file, token)
        other.join()
        assert [file.exists()] == taken
