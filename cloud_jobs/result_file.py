"""The file that a command writes: the old one, or the whole new one, never a part."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterable
from io import TextIOWrapper
from pathlib import Path
from typing import Final, TextIO

from runtime import writing_durably

# as many as Linux follows: a circle of links ends here
_MAX_LINKS: Final = 40
_OPEN_FILE: Final = re.compile(r"(?:/proc/(?P<process>[^/]+)(?:/task/[^/]+)?|/dev)/fd/(?P<number>[0-9]+)")


def write_csv(path: Path, header: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> None:
    """Writes rows beside `path` and renames; whatever is raised, by the rows too, leaves `path` as it was.

    What is open already (`/dev/stdout`, also where a shell sent it to a file) is written to where it stands; so is
    a pipe. Neither is replaced. An OSError names `path`.
    """
    try:
        _write_to(path, header, rows)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def _write_to(path: Path, header: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> None:
    descriptor = open_descriptor(path)
    if descriptor is not None:
        # a copy: to close the stream must leave standard output open
        with open(os.dup(descriptor), "w", encoding="utf-8", newline="") as stream:  # noqa: PTH123  # a descriptor
            _write(stream, header, rows)
    elif path.exists() and not path.is_file():
        with path.open("w", encoding="utf-8", newline="") as stream:
            _write(stream, header, rows)
    else:
        # the file behind a link is replaced, and the link stays
        _replace(path.resolve(), header, rows)


def open_descriptor(path: Path) -> int | None:
    """The number of the open file of this process that a path stands for, through links; None: it stands for none."""
    for _ in range(_MAX_LINKS):
        path = Path(os.path.realpath(path.parent), path.name)
        match = _OPEN_FILE.fullmatch(str(path))
        if match is not None and match["process"] in (None, str(os.getpid())):
            return int(match["number"])
        if not path.is_symlink():
            return None
        path = path.parent / path.readlink()
    return None


def _replace(path: Path, header: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> None:
    with writing_durably(path, mode=0o666) as binary:
        if path.exists():
            # whoever could read the old file can read the new one, and nobody else
            os.fchmod(binary.fileno(), path.stat().st_mode & 0o777)
        text = TextIOWrapper(binary, encoding="utf-8", newline="")
        try:
            _write(text, header, rows)
        finally:
            text.detach()  # it would close the file, which is synced after this


def _write(file: TextIO, header: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
