"""Files of a lake in a folder are on disk before a commit names them; an object store has them when it says so."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path, PurePosixPath

from pyarrow.fs import FileSystem, LocalFileSystem, SubTreeFileSystem

from waybill.daemon.durable_file import sync_folder


def sync_files(files: FileSystem, paths: Iterable[str]) -> None:
    """Returns when these files, and the folders that lead to them, survive a power cut. Raises OSError.

    A file that is gone already, as an old one of Delta's log may be, is left out. Other file systems than the local one
    need nothing.
    """
    local = _local_folder(files)
    if local is None:
        return
    folders = {PurePosixPath(".")}
    for path in paths:
        with suppress(FileNotFoundError):
            _sync(local / path)
        folders.update(PurePosixPath(path).parents)
    for folder in sorted(folders):
        sync_folder(local / folder)


def _local_folder(files: FileSystem) -> Path | None:
    if isinstance(files, SubTreeFileSystem):
        inner = _local_folder(files.base_fs)
        return None if inner is None else inner / files.base_path
    return Path() if isinstance(files, LocalFileSystem) else None


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
