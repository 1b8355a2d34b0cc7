"""What a commit names is on disk before it, with the folders that lead to it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from cloud_jobs.lake.location import sync_files
from tests.cloud_jobs.ingest.centre import batch, new_ingest, new_lake, take_in
from waybill.daemon.durable_file import create_durably


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What was made durable, in order."""
    found: list[Path] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        found.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return found


def test_a_file_and_each_folder_above_it_in_the_lake_are_synced(tmp_path: Path, synced: list[Path]) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_bytes(b"x")
    sync_files(SubTreeFileSystem(str(tmp_path), LocalFileSystem()), ["a/b/file", "a/gone"])
    assert synced[0] == tmp_path / "a" / "b" / "file"
    assert set(synced[1:]) == {tmp_path, tmp_path / "a", tmp_path / "a" / "b"}


def test_a_commit_names_only_what_is_on_disk_and_is_on_disk_before_the_ingest_goes_on(
    tmp_path: Path, synced: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = new_lake(tmp_path)
    writer = new_ingest(lake)
    before: list[Path] = []

    def commit(path: Path, content: bytes) -> bool:
        if not before:
            before.extend(synced)
        return create_durably(path, content)

    with monkeypatch.context() as watched:
        watched.setattr("cloud_jobs.lake.appending.create_durably", commit)
        take_in(lake, writer, [batch(1, 2), batch(3, day=1)])
    named = {Path(uri) for uri in lake.open("records").file_uris()}
    coverage = {*(tmp_path / "coverage").rglob("*.json"), *(tmp_path / "coverage").rglob("*.parquet")}
    assert len(named) == len(coverage) == 2
    assert {*named, *coverage} <= {*before}
    log = tmp_path / "records" / "_delta_log"
    after = {*synced} - {*before}
    assert log in after
    assert any(path.parent == log for path in after), "its content, under the name that it had before it was there"
