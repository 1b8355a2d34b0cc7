"""Fixes from CSV text: the good rows as columns, each bad row with its line."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from geo.spatial.errors import FixError
from geo.spatial.fixes import Fixes, valid_positions
from geo.spatial.ragged import Floats

REQUIRED: Final = ("device_id", "t_ms", "lat", "lon")
OPTIONAL: Final = ("speed_mps", "accuracy_m")
MAX_FAULTS: Final = 10_000
_ROWS_AT_ONCE: Final = 50_000


@dataclass(frozen=True, slots=True)
class FixFile:
    """Fixes of a file. `devices` are the ids in text order: `fixes.device` indexes it.

    `faults`: one message, with its line, for each row left out, the first `MAX_FAULTS` of `fault_count`.
    """

    fixes: Fixes
    devices: tuple[str, ...]
    faults: tuple[str, ...]
    fault_count: int


@dataclass(frozen=True, slots=True)
class _Row:
    line: int
    cells: list[str]


def read_fixes(lines: Iterable[str]) -> FixFile:
    """Read CSV lines with a header that names at least `device_id,t_ms,lat,lon`, in any order.

    One line is one row (quoted text holds no line break, so a stray quote spoils its own line only). Raises
    `FixError` if the header lacks a column.
    """
    numbered = _rows(lines)
    header = next(numbered, None)
    names = [name.strip().lower() for name in header.cells] if header else []
    missing = [name for name in REQUIRED if name not in names]
    if missing:
        raise FixError(f"line 1: the header lacks {', '.join(missing)}; it needs {','.join(REQUIRED)}")
    reader = _Reader([names.index(name) if name in names else None for name in REQUIRED + OPTIONAL], len(names))
    while rows := list(islice(numbered, _ROWS_AT_ONCE)):
        reader.add(rows)
    return reader.result()


def _rows(lines: Iterable[str]) -> Iterator[_Row]:
    for number, line in enumerate(lines, start=1):
        text = line.rstrip("\r\n")
        if not text.strip():
            continue
        if '"' not in text:
            yield _Row(number, text.split(","))
            continue
        try:
            yield _Row(number, next(csv.reader([text], strict=True)))
        except csv.Error:
            yield _Row(number, [])


class _Reader:
    """Turns rows to columns: a block at a time, or row by row where a block has a fault."""

    def __init__(self, places: Sequence[int | None], width: int) -> None:
        self._places, self._width = places, width
        self._ids: dict[str, int] = {}
        self._device: list[NDArray[np.int64]] = []
        self._t_ms: list[NDArray[np.int64]] = []
        self._numbers: list[list[Floats]] = []
        self._faults: list[str] = []
        self._fault_count = 0

    def add(self, rows: list[_Row]) -> None:
        try:
            self._add_block(rows)
        except ValueError:
            self._add_block([row for row in rows if not self._fault(row)])

    def _add_block(self, rows: list[_Row]) -> None:
        if any(len(row.cells) != self._width for row in rows):
            raise ValueError("a row of another width")
        if not rows:
            return
        columns = list(zip(*(row.cells for row in rows), strict=True))
        device, t_ms, *numbers = [None if place is None else columns[place] for place in self._places]
        times = np.array(t_ms).astype(np.int64)
        values = [_numbers(cells, len(rows), blank=at >= 2) for at, cells in enumerate(numbers)]
        if not valid_positions(values[0], values[1]).all() or any(np.isinf(column).any() for column in values):
            raise ValueError("a place that is none")
        names = [name.strip() for name in device or ()]
        if not all(names):
            raise ValueError("no device id")
        self._device.append(np.array([self._ids.setdefault(name, len(self._ids)) for name in names]))
        self._t_ms.append(times)
        self._numbers.append(values)

    def _fault(self, row: _Row) -> bool:
        reason = _reason(row, self._places, self._width)
        if reason is None:
            return False
        self._fault_count += 1
        if len(self._faults) < MAX_FAULTS:
            self._faults.append(f"line {row.line}: {reason}")
        return True

    def result(self) -> FixFile:
        devices = sorted(self._ids)
        rank = np.zeros(len(devices), dtype=np.int64)
        rank[[self._ids[name] for name in devices]] = np.arange(len(devices))
        lat, lon, speed, accuracy = (
            np.concatenate([np.zeros(0), *(block[at] for block in self._numbers)]) for at in range(4)
        )
        none = np.zeros(0, dtype=np.int64)
        fixes = Fixes(
            device=rank[np.concatenate([none, *self._device])],
            t_ms=np.concatenate([none, *self._t_ms]),
            lat=lat,
            lon=lon,
            speed_mps=speed,
            accuracy_m=accuracy,
        )
        return FixFile(fixes, tuple(devices), tuple(self._faults), self._fault_count)


def _numbers(cells: Sequence[str] | None, count: int, *, blank: bool) -> Floats:
    if cells is None:
        return np.full(count, np.nan)
    if blank and not all(cells):
        cells = [cell if cell.strip() else "nan" for cell in cells]
    return np.array(cells).astype(np.float64)


def _reason(row: _Row, places: Sequence[int | None], width: int) -> str | None:
    """What is wrong with a row, if anything."""
    if not row.cells:
        return "a quote is not closed"
    if len(row.cells) != width:
        return f"{len(row.cells)} columns where the header has {width}"
    cells = {
        name: row.cells[place].strip()
        for name, place in zip(REQUIRED + OPTIONAL, places, strict=True)
        if place is not None
    }
    if not cells.pop("device_id"):
        return "device_id is empty"
    if _whole(t_ms := cells.pop("t_ms")) is None:
        return f"t_ms {t_ms!r} is not a whole number of milliseconds"
    return next((fault for name, cell in cells.items() if (fault := _number_fault(name, cell))), None)


def _number_fault(name: str, cell: str) -> str | None:
    if name in OPTIONAL and (not cell or cell.lower() == "nan"):
        return None
    if not _finite(cell):
        return f"{name} {cell!r} is not a number"
    limit = {"lat": 90.0, "lon": 180.0}.get(name, math.inf)
    return f"{name} {cell} is outside ±{limit:g}" if abs(float(cell)) > limit else None


def _whole(text: str) -> int | None:
    try:
        value = int(text)
    except ValueError:
        return None
    return value if abs(value) < 1 << 53 else None


def _finite(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
