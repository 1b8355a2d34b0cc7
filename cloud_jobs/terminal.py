"""Output of commands: tables that fit, result files, and errors as messages.

A table of Rich cuts every column alike where there is no room, and of a number nobody can use a half.
"""

from __future__ import annotations

import csv
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TextIO

import typer
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from cloud_jobs.errors import CloudError

if TYPE_CHECKING:
    from cloud_jobs.lake.coverage import TenantDevice
from waybill.daemon.durable_file import writing_durably
from waybill.settings import printable

# Atomic writing of an output file; CSV cells are never formulas.

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


PIPE_WIDTH: Final = 160
"""Characters a line where the output is no terminal: a pipe or a file has no width of its own."""
_BORDER: Final = 3
"""Characters that a column takes beside its text; the last border is one more."""
_LEAST: Final = 10
"""A text is not folded to less than so many characters."""


class Column(NamedTuple):
    """A column. `folds`: its text goes on in the next line where there is no room; others are never cut.

    `lesser`: it may be left out where there is no room, the highest number first; 0 is never left out.
    """

    name: str
    right: bool = False
    folds: bool = False
    lesser: int = 0

    @classmethod
    def number(cls, name: str, lesser: int = 0) -> Column:
        """A column of numbers, to the right and never cut."""
        return cls(name, right=True, lesser=lesser)

    @classmethod
    def text(cls, name: str, lesser: int = 0) -> Column:
        """A column of texts that may fold."""
        return cls(name, folds=True, lesser=lesser)


def screen(pipe_width: int | None = None) -> Console:
    """Standard output: as wide as the terminal, or so wide if it is none."""
    return Console(width=None if sys.stdout.isatty() else pipe_width or PIPE_WIDTH)


class FittedTable:
    """Rows in columns, which are laid out when the width of the terminal is known. A column without name is as ""."""

    def __init__(self, *columns: Column, title: str = "", caption: str = "") -> None:
        self._columns = columns
        self._title, self._caption = title, caption
        self._rows: list[list[Text]] = []
        self._ends: set[int] = set()

    def add(self, *cells: str | Text) -> None:
        """A row; cells that are missing at the end are empty."""
        assert len(cells) <= len(self._columns), cells
        # as Text: Rich would read brackets in a name as markup
        made = [Text(printable(cell, "\n")) if isinstance(cell, str) else _printable(cell) for cell in cells]
        self._rows.append(made + [Text("")] * (len(self._columns) - len(made)))

    def add_section(self) -> None:
        """A line below the last row."""
        self._ends.add(len(self._rows) - 1)

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        shown, left_out = self._fitting(options.max_width)
        least = [self._least(at) for at in shown]
        if _total(least) > options.max_width:
            yield from self._row_by_row()
            return
        yield self._table(shown, self._widths(shown, least, options.max_width))
        if left_out:
            names = ", ".join(self._columns[at].name for at in left_out)
            yield Text(f"Left out, for want of room: {names}.", style="dim")

    def _fitting(self, width: int) -> tuple[list[int], list[int]]:
        """Which columns are shown, and what is missing then: of an empty column, which goes first, nothing is."""
        shown = [*range(len(self._columns))]
        filled = {at for at in shown if any(row[at] for row in self._rows)}
        lesser = [at for at in shown if self._columns[at].lesser]
        for at in sorted(lesser, key=lambda at: (at in filled, -self._columns[at].lesser)):
            if _total(self._least(at) for at in shown) <= width:
                break
            shown.remove(at)
        return shown, [at for at in lesser if at in filled and at not in shown]

    def _whole(self, at: int) -> int:
        cells = (line for row in self._rows for line in row[at].plain.splitlines())
        return max([cell_len(self._columns[at].name), *map(cell_len, cells)])

    def _least(self, at: int) -> int:
        whole = self._whole(at)
        longest = max((cell_len(word) for word in self._columns[at].name.split()), default=0)
        return min(whole, max(_LEAST, longest)) if self._columns[at].folds else whole

    def _widths(self, shown: Sequence[int], least: list[int], width: int) -> list[int]:
        """What is left is for the columns that fold, the narrowest first."""
        made, wanted = [*least], [self._whole(at) for at in shown]
        for _ in range(width - _total(least)):
            short = [place for place, most in enumerate(wanted) if made[place] < most]
            if not short:
                break
            made[min(short, key=made.__getitem__)] += 1
        return made

    def _table(self, shown: Sequence[int], widths: Sequence[int]) -> Table:
        named = any(column.name for column in self._columns)
        table = Table(
            title=Text(self._title) if self._title else None,
            title_justify="left",
            caption=Text(self._caption) if self._caption else None,
            caption_justify="left",
            show_header=named,
        )
        for at, width in zip(shown, widths, strict=True):
            column = self._columns[at]
            justify: JustifyMethod = "right" if column.right else "left"
            table.add_column(column.name, width=width, justify=justify, overflow="fold", no_wrap=not column.folds)
        for place, row in enumerate(self._rows):
            table.add_row(*(row[at] for at in shown), end_section=place in self._ends)
        return table

    def _row_by_row(self) -> Iterable[RenderableType]:
        """Where not even the columns that must be shown have room: each cell in a line of its own."""
        if self._title:
            yield Text(self._title)
        for row in self._rows:
            yield ""
            for column, cell in zip(self._columns, row, strict=True):
                if cell:
                    yield Text.assemble(column.name, " " if column.name else "", cell)


def _printable(cell: Text) -> Text:
    shown = printable(cell.plain, "\n")
    return cell if shown == cell.plain else Text(shown, style=cell.style)


def _total(widths: Iterable[int]) -> int:
    found = [*widths]
    return sum(found) + _BORDER * len(found) + 1


@contextmanager
def cloud_errors_as_messages(program: str) -> Iterator[None]:
    """A `CloudError` is one line on standard error, which begins with `program`, and its own exit status."""
    try:
        yield
    except CloudError as error:
        typer.echo(printable(f"{program}: {error}", "\n"), err=True)
        raise typer.Exit(error.exit_status) from error


def device_of(text: str) -> TenantDevice:
    """The device that TENANT/DEVICE names. Raises BadParameter."""
    from cloud_jobs.lake.coverage import TenantDevice  # noqa: PLC0415 - most commands need no device

    tenant, stroke, name = text.partition("/")
    if not (tenant and stroke and name):
        raise typer.BadParameter(f"{text!r} is no device: write TENANT/DEVICE")
    return TenantDevice(tenant, name)
