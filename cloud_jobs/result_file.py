"""The file that a command writes: the old one, or the whole new one, never a part. A name in a CSV is no formula."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Final, TextIO

from waybill.daemon.durable_file import writing_durably

# as many as Linux follows: a circle of links ends here
_MAX_LINKS: Final = 40
# A spreadsheet computes a cell that begins with one of these, or drops the first two and then computes it.
_FORMULA: Final = ("\t", "\n", "=", "+", "-", "@", "＝", "＋", "－", "＠")
_OPEN_FILE: Final = re.compile(r"(?:/proc/(?P<process>[^/]+)(?:/task/[^/]+)?|/dev)/fd/(?P<number>[0-9]+)")


def write_csv(path: Path, header: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> None:
    """Writes rows as `writing_result` does, their texts by `spreadsheet_text`."""
    with writing_result(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(tuple(spreadsheet_text(cell) for cell in row) for row in rows)


def spreadsheet_text(cell: object) -> object:
    """A cell of a CSV that no spreadsheet computes: a text that would be a formula gets an apostrophe in front."""
    if not isinstance(cell, str):
        return cell
    # The writer does not quote a carriage return, which would end the row.
    text = cell.replace("\r", "\\r")
    return f"'{text}" if text.startswith(_FORMULA) else text


@contextmanager
def writing_result(path: Path) -> Iterator[TextIO]:
    """Writes beside `path` and renames; whatever the block raises leaves `path` as it was.

    What is open already (`/dev/stdout`, also where a shell sent it to a file) is written to where it stands; so is
    a pipe. Neither is replaced. An OSError names `path`.
    """
    try:
        with _opened(path) as file:
            yield file
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    descriptor = open_descriptor(path)
    if descriptor is not None:
        # a copy: to close the stream must leave standard output open
        with open(os.dup(descriptor), "w", encoding="utf-8", newline="") as stream:  # noqa: PTH123  # a descriptor
            yield stream
    elif path.exists() and not path.is_file():
        with path.open("w", encoding="utf-8", newline="") as stream:
            yield stream
    else:
        # the file behind a link is replaced, and the link stays
        with _replacing(path.resolve()) as stream:
            yield stream


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


@contextmanager
def _replacing(path: Path) -> Iterator[TextIO]:
    with writing_durably(path, mode=0o666) as binary:
        if path.exists():
            # whoever could read the old file can read the new one, and nobody else
            os.fchmod(binary.fileno(), path.stat().st_mode & 0o777)
        text = TextIOWrapper(binary, encoding="utf-8", newline="")
        try:
            yield text
        finally:
            text.detach()  # it would close the file, which is synced after this
