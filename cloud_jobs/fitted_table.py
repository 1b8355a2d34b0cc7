"""Tables for the terminal, however narrow it is: numbers and names are shown whole, texts fold, lesser columns go.

A table of Rich cuts every column alike where there is no room, and of a number nobody can use a half.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from waybill.settings import printable

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
