"""A file is replaced whole or not at all, and nothing is left beside it."""

import errno
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from waybill.daemon.bounded_file import read_bounded
from waybill.daemon.durable_file import create_durably, replace_durably


def test_a_file_has_the_new_content_and_no_neighbour(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    file.write_bytes(b"old")
    replace_durably(file, b"new", mode=0o600)
    assert file.read_bytes() == b"new"
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("fails", ["fsync", "rename"])
def test_after_an_error_the_old_content_stands_and_no_neighbour_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    file = tmp_path / "state.json"
    file.write_bytes(b"old")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    if fails == "fsync":
        monkeypatch.setattr(os, "fsync", refuse)
    else:
        monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="No space"):
        replace_durably(file, b"new")
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_of_many_who_create_a_file_at_once_one_does_and_the_others_change_nothing(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda number: create_durably(tmp_path / "f", bytes([number]) * 9), range(40)))
    assert made.count(True) == 1
    assert (tmp_path / "f").read_bytes() == bytes([made.index(True)]) * 9
    assert list(tmp_path.iterdir()) == [tmp_path / "f"]


def test_content_in_pieces_is_one_file_and_none_if_a_piece_cannot_be_made(tmp_path: Path) -> None:
    def broken() -> Iterator[bytes]:
        yield b"a"
        raise ValueError("b")

    assert create_durably(tmp_path / "f", iter([b"a", b"", b"b"]))
    with pytest.raises(ValueError, match="b"):
        create_durably(tmp_path / "g", broken())
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"f": b"ab"}


def test_a_file_whose_creation_was_answered_late_and_asked_for_again_was_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def answered_late(one: Path, other: Path) -> None:
        link(one, other)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(other))

    monkeypatch.setattr(os, "link", answered_late)
    assert create_durably(tmp_path / "f", b"new")
    assert not create_durably(tmp_path / "f", b"another")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"new"]


def test_a_file_of_as_many_bytes_as_are_allowed_is_read_and_a_longer_one_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(1000))
    assert read_bounded(file, 1000) == bytes(1000)
    with pytest.raises(ValueError, match="more than 999 bytes"):
        read_bounded(file, 999)


def test_what_a_shell_hands_over_and_never_ends_is_refused() -> None:
    with Path("/dev/zero").open("rb") as endless, pytest.raises(ValueError, match="more than 3000000 bytes"):
        read_bounded(Path(f"/dev/fd/{endless.fileno()}"), 3_000_000)
