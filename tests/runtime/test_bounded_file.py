"""A file is read whole, or refused by its size before it fills the memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from waybill.daemon.bounded_file import read_bounded


def test_a_file_of_as_many_bytes_as_are_allowed_is_read_and_a_longer_one_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(1000))
    assert read_bounded(file, 1000) == bytes(1000)
    with pytest.raises(ValueError, match="more than 999 bytes"):
        read_bounded(file, 999)


def test_what_a_shell_hands_over_and_never_ends_is_refused() -> None:
    with Path("/dev/zero").open("rb") as endless, pytest.raises(ValueError, match="more than 3000000 bytes"):
        read_bounded(Path(f"/dev/fd/{endless.fileno()}"), 3_000_000)
