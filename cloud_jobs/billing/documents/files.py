"""Writes the files of documents into one folder: inside it, all or none of them, and never over what is there."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from cloud_jobs.billing.documents.errors import NotWritten
from waybill.daemon.durable_file import create_durably, sync_folder

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""Of what a file's name consists: nothing in it is a folder, and none is hidden."""


def write_documents(folder: Path, files: Mapping[str, bytes | Iterable[bytes]]) -> None:
    """Make the folder if it is not there, and the files in it, each of them new. Raises NotWritten.

    After an error, none of them is there; after a power cut, some may be, each of them whole. The folder itself may be
    a link, chosen by whoever asks; a file whose name is taken, also by a link, is not written.
    """
    for name in files:
        if not _NAME.fullmatch(name):
            raise NotWritten(f"{name!r} is no name for a file: use letters, digits, points, dashes and underlines")
    made: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        taken = sorted(name for name in files if os.path.lexists(folder / name))
        if taken:
            raise NotWritten(f"{folder} has {', '.join(taken)} already; nothing was written")
        for name, content in files.items():
            if not create_durably(folder / name, content):
                raise NotWritten(f"{folder} got {name} from somebody else meanwhile; nothing was written")
            made.append(folder / name)
    except BaseException as error:
        _remove(made)
        if isinstance(error, OSError):
            raise NotWritten(f"nothing was written into {folder}: {error}") from error
        raise


def _remove(made: list[Path]) -> None:
    for path in made:
        with contextlib.suppress(OSError):
            path.unlink()
    if made:
        with contextlib.suppress(OSError):
            sync_folder(made[0].parent)
