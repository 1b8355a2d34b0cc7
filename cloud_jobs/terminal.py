"""Output of commands: tables, result files, and errors as messages."""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TextIO

import typer
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from cloud_jobs.errors import CloudError

if TYPE_CHECKING:
    from cloud_jobs.lake.coverage import TenantDevice
from waybill.daemon.durable_file import writing_durably
from waybill.settings import printable

# Atomic writing of an output file; CSV cells are never formulas.

# A spreadsheet computes a cell that begins with one of these, or drops the first two and then computes it.
_FORMULA: Final = ("\t", "\n", "=", "+", "-", "@", "＝", "＋", "－", "＠")


def write_csv(path: Path, header: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> None:
    """Writes rows with `writing_result`; texts pass `spreadsheet_text`."""
    with writing_result(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(tuple(spreadsheet_text(cell) for cell in row) for row in rows)


def spreadsheet_text(cell: object) -> object:
    """A CSV cell that no spreadsheet evaluates: an apostrophe goes before a formula."""
    if not isinstance(cell, str):
        return cell
    # The writer does not quote a carriage return, which would end the row.
    text = cell.replace("\r", "\\r")
    return f"'{text}" if text.startswith(_FORMULA) else text


@contextmanager
def writing_result(path: Path) -> Iterator[TextIO]:
    """Writes a new file that replaces `path` at the end; if the block raises, `path` stays as it was.

    Standard output, by whatever name, and a pipe are written to directly. An OSError names `path`.
    """
    try:
        with _opened(path) as file:
            yield file
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    if path.exists() and os.path.samestat(path.stat(), os.fstat(1)):
        # a copy: closing the stream must leave standard output open
        with open(os.dup(1), "w", encoding="utf-8", newline="") as stream:  # noqa: PTH123 - a descriptor
            yield stream
        return
    if path.exists() and not path.is_file():
        with path.open("w", encoding="utf-8", newline="") as stream:
            yield stream
        return
    # the file behind a link is replaced, and the link stays
    path = path.resolve()
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
"""The line width for a pipe or a file, which has no width of its own."""


class Column(NamedTuple):
    """A column. If the table is too wide, `optional` columns go, and texts of those with `folds` take more lines."""

    name: str
    right: bool = False
    folds: bool = False
    optional: bool = False

    @classmethod
    def number(cls, name: str, *, optional: bool = False) -> Column:
        return cls(name, right=True, optional=optional)

    @classmethod
    def text(cls, name: str) -> Column:
        return cls(name, folds=True)


def screen(pipe_width: int | None = None) -> Console:
    """Standard output, as wide as the terminal; `pipe_width` characters if it is not a terminal."""
    return Console(width=None if sys.stdout.isatty() else pipe_width or PIPE_WIDTH)


_FOLDED: Final = 6
"""The least width of a column that folds."""


class FittedTable(Table):
    """A Rich table that leaves out optional columns and folds texts before it folds numbers and names."""

    def __init__(self, *columns: Column, title: str = "", caption: str = "") -> None:
        super().__init__(
            title=Text(title) if title else None,
            title_justify="left",
            caption=Text(caption) if caption else None,
            caption_justify="left",
            show_header=any(column.name for column in columns),
        )
        for column in columns:
            width = None if column.folds else cell_len(column.name)
            self.add_column(column.name, justify="right" if column.right else "left", overflow="fold", width=width)
        self._optional = [made for made, column in zip(self.columns, columns, strict=True) if column.optional]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for column in self._optional:
            if (
                column in self.columns
                and 1 + sum(3 + (one.width or _FOLDED) for one in self.columns) > options.max_width
            ):
                self.columns.remove(column)
        yield from super().__rich_console__(console, options)

    def add(self, *cells: str | Text) -> None:
        """Adds a row; missing cells at the end are empty."""
        # as Text: Rich would read brackets in a name as markup
        texts = [Text(printable(cell, "\n")) if isinstance(cell, str) else _printable(cell) for cell in cells]
        for column, text in zip(self.columns, texts, strict=False):
            if column.width is not None:
                column.width = max(column.width, *map(cell_len, text.plain.splitlines()), 0)
        self.add_row(*texts)


def _printable(cell: Text) -> Text:
    shown = printable(cell.plain, "\n")
    return cell if shown == cell.plain else Text(shown, style=cell.style)


@contextmanager
def cloud_errors_as_messages(program: str) -> Iterator[None]:
    """Prints a CloudError as one line after `program`, and exits with its status."""
    try:
        yield
    except CloudError as error:
        typer.echo(printable(f"{program}: {error}", "\n"), err=True)
        raise typer.Exit(error.exit_status) from error


def device_of(text: str) -> TenantDevice:
    """Parses TENANT/DEVICE. Raises BadParameter."""
    from cloud_jobs.lake.coverage import TenantDevice  # noqa: PLC0415 - most commands need no device

    tenant, stroke, name = text.partition("/")
    if not (tenant and stroke and name):
        raise typer.BadParameter(f"{text!r} is not a device; write TENANT/DEVICE")
    return TenantDevice(tenant, name)
