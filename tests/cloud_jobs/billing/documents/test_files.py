"""Files of documents are written inside the folder, all or none, and never over what is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloud_jobs.billing.documents import NotWritten, write_documents
from waybill.daemon.durable_file import create_durably

FILES = {"WB-1.json": b"{}", "WB-1.html": b"<p>", "WB-1.csv": b""}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_all_files_are_in_the_folder_and_nothing_else(tmp_path: Path) -> None:
    write_documents(tmp_path / "2026" / "03", FILES)
    assert contents(tmp_path / "2026" / "03") == FILES


@pytest.mark.parametrize(
    "name",
    ["../evil", "../../evil", "/etc/evil", "a/b", "", ".", "..", ".hidden", "a\x00b", "a\nb", "ä", "x" * 129, "a\\b"],
)
def test_a_name_that_leads_out_of_the_folder_is_refused(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "inside"
    with pytest.raises(NotWritten):
        write_documents(folder, {**FILES, name: b"evil"})
    assert contents(tmp_path) == {}


@pytest.mark.parametrize("taken", sorted(FILES))
def test_a_name_that_is_taken_keeps_its_content_and_nothing_is_written(taken: str, tmp_path: Path) -> None:
    (tmp_path / taken).write_bytes(b"issued before")
    with pytest.raises(NotWritten, match="already"):
        write_documents(tmp_path, FILES)
    assert contents(tmp_path) == {taken: b"issued before"}


@pytest.mark.parametrize("there", [True, False], ids=["a link", "a dangling link"])
def test_a_link_of_that_name_is_not_followed(there: bool, tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    folder.mkdir()
    if there:
        outside.write_bytes(b"mine")
    (folder / "WB-1.csv").symlink_to(outside)
    with pytest.raises(NotWritten):
        write_documents(folder, FILES)
    assert outside.exists() is there
    assert not there or outside.read_bytes() == b"mine"
    assert [path.name for path in folder.iterdir()] == ["WB-1.csv"]


@pytest.mark.parametrize("fails_at", range(len(FILES)))
@pytest.mark.parametrize(
    "error", [OSError("No space left on device"), KeyboardInterrupt()], ids=["full", "interrupted"]
)
def test_what_fails_midway_leaves_nothing(
    error: BaseException, fails_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = iter(range(len(FILES)))

    def fails(path: Path, content: bytes) -> bool:
        if next(calls) == fails_at:
            raise error
        return create_durably(path, content)

    monkeypatch.setattr("cloud_jobs.billing.documents.forms.create_durably", fails)
    with pytest.raises(KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else NotWritten):
        write_documents(tmp_path, FILES)
    assert contents(tmp_path) == {}
