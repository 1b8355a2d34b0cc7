"""Fixes from CSV text: the good rows as columns, each bad row with its line."""

from __future__ import annotations

import csv
import math
import re
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Final, NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

from geo.spatial.errors import FixError
from geo.spatial.fixes import Fixes
from geo.spatial.ids import id_fault
from waybill.settings import near_equal

REQUIRED: Final = ("device_id", "t_ms", "lat", "lon")
OPTIONAL: Final = ("speed_mps", "accuracy_m")
MAX_FAULTS: Final = 10_000
MAX_LINE_CHARS: Final = 65_536
MAX_NUMBER_CHARS: Final = 64
# Times are interpolated as doubles, which from here on leave out whole milliseconds.
MAX_TIME_MS: Final = 1 << 53
_SECONDS: Final = (1_000_000_000, 4_200_000_000)
"""Unix seconds of 2001 to 2103: as milliseconds they would be of one winter, of 1970."""
_MILLISECONDS: Final = tuple(bound * 1_000 for bound in _SECONDS)
_OTHER_UNITS: Final = {"seconds": _SECONDS, "microseconds": tuple(bound * 1_000_000 for bound in _SECONDS)}
_SIMILAR: Final = 0.6
_NUMBERS: Final = (
    ("lat", 90.0, False),
    ("lon", 180.0, False),
    ("speed_mps", sys.float_info.max, True),
    ("accuracy_m", sys.float_info.max, True),
)
"""The columns of numbers: the greatest value, and whether it may be absent."""
_WHOLE: Final = re.compile(r"[+-]?[0-9]+")
_DECIMAL: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


@dataclass(frozen=True, slots=True)
class FixFile:
    """Fixes of a file. `devices` are the ids in text order: `fixes.device` indexes it.

    `faults`: one message, with its line, for each malformed row, the first `MAX_FAULTS` of `fault_count`.
    `device_faults`: one for each device with times in another unit, and for each group of devices whose ids read the
    same, with the first line; these rows, in all `device_fault_count`, are left out too. `notices`: columns that are
    not read, and that read like one that could be there.
    """

    fixes: Fixes
    devices: tuple[str, ...]
    faults: tuple[str, ...]
    fault_count: int
    device_faults: tuple[str, ...] = ()
    device_fault_count: int = 0
    notices: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether each row is a fix."""
        return not (self.fault_count or self.device_fault_count)


class _Row(NamedTuple):
    line: int
    cells: list[str]
    fault: str = ""


def bounded_lines(file: TextIO) -> Iterator[str]:
    """The lines of a file; of one longer than `MAX_LINE_CHARS`, which `read_fixes` refuses, no more is held.

    `file` is opened as it is by default: each line end is read as one character (`newline=None`).
    """
    while line := file.readline(MAX_LINE_CHARS + 1):
        rest = line
        while len(rest) > MAX_LINE_CHARS and not rest.endswith("\n"):
            rest = file.readline(MAX_LINE_CHARS + 1)
        yield line


def read_fixes(lines: Iterable[str]) -> FixFile:
    """Read CSV lines with a header that names at least `device_id,t_ms,lat,lon`, in any order.

    One line is one row (quoted text holds no line break, so a stray quote spoils its own line only). Text decoded
    with `surrogateescape` is taken: an id that is not UTF-8 is a malformed row. Raises `FixError` if the header lacks
    a column, or names one twice.

    Ids that read the same (`settings.as_read`) are one device and a slip, and nobody knows which: all are left out.
    Units are judged for each device: times that are Unix seconds or microseconds of 2001 to 2103 are left out where all
    times of the device are such, or where others of it are milliseconds of these years. Times that count from 0 stay.
    """
    numbered = _rows(lines)
    header = next(numbered, None)
    names = [name.strip().lower() for name in header.cells] if header else []
    missing = [name for name in REQUIRED if name not in names]
    if missing:
        raise FixError(f"line 1: the header lacks {', '.join(missing)}; it needs {','.join(REQUIRED)}")
    twice = [name for name in REQUIRED + OPTIONAL if names.count(name) > 1]
    if twice:
        raise FixError(f"line 1: the header names {', '.join(twice)} more than once")
    reader = _FixReader([names.index(name) if name in names else None for name in REQUIRED + OPTIONAL], len(names))
    for row in numbered:
        reader.add(row)
    return replace(reader.result(), notices=(*_unread_columns(names),))


def _unread_columns(names: Sequence[str]) -> Iterator[str]:
    for name in names:
        near = get_close_matches(name, [one for one in OPTIONAL if one not in names], 1, _SIMILAR)
        if near and name not in REQUIRED + OPTIONAL:
            yield f"line 1: the column {name!r} is not read; did you mean {near[0]}?"


def _rows(lines: Iterable[str]) -> Iterator[_Row]:
    for number, line in enumerate(lines, start=1):
        text = line.rstrip("\r\n")
        if len(text) > MAX_LINE_CHARS:
            yield _Row(number, [], f"it is longer than {MAX_LINE_CHARS:,} characters")
            continue
        if not text.strip():
            continue
        if '"' not in text:
            yield _Row(number, text.split(","))
            continue
        try:
            yield _Row(number, next(csv.reader([text], strict=True)))
        except csv.Error:
            yield _Row(number, [], "a quote is not closed, or stands within text")


_Fault = tuple[int, str]
"""A message, and the line by which it is sorted."""


class _Malformed(ValueError):
    """A row is malformed."""


class _FixReader:
    """Good rows as columns: their lines, devices, times, and lat, lon, speed, accuracy."""

    def __init__(self, places: Sequence[int | None], width: int) -> None:
        self._places, self._width = places, width
        self._ids: dict[str, int] = {}
        self._whole = array("q")  # line, device and time of each row
        self._numbers = array("d")
        self._faults: list[str] = []
        self._fault_count = 0

    def add(self, row: _Row) -> None:
        """Adds a row, or what is wrong with it."""
        try:
            device, t_ms, numbers = self._parsed(row)
        except _Malformed as fault:
            self._fault_count += 1
            if len(self._faults) < MAX_FAULTS:
                self._faults.append(f"line {row.line}: {fault}")
        else:
            self._whole.extend((row.line, device, t_ms))
            self._numbers.extend(numbers)

    def _parsed(self, row: _Row) -> tuple[int, int, Iterable[float]]:
        """Device, time and numbers of a row; raises `_Malformed` with what is wrong with it."""
        if row.fault:
            raise _Malformed(row.fault)
        if len(row.cells) != self._width:
            raise _Malformed(f"{len(row.cells)} columns where the header has {self._width}")
        name, t_ms, *cells = ["" if place is None else row.cells[place].strip() for place in self._places]
        number = self._ids.get(name)
        if number is None:
            if fault := id_fault(name):
                raise _Malformed(f"device_id {_shown(name)}: {fault}")
            number = len(self._ids)
        values = number, _time(t_ms), [_number(*known, cell) for known, cell in zip(_NUMBERS, cells, strict=True)]
        self._ids[name] = number
        return values

    def result(self) -> FixFile:
        lines, device, t_ms = np.array(self._whole, dtype=np.int64).reshape(-1, 3).T
        numbers = np.array(self._numbers).reshape(-1, len(_NUMBERS))
        names = [*self._ids]
        wrong = _in_other_units(device, t_ms, len(names))
        faults = [*_unit_faults(names, device[wrong], t_ms[wrong], lines[wrong])]
        for group, fault in _near_equal_faults(self._ids, lines[np.unique(device, return_index=True)[1]]):
            faults.append(fault)
            wrong |= np.isin(device, group)
        device, t_ms = device[~wrong], t_ms[~wrong]
        lat, lon, speed, accuracy = numbers[~wrong].T.copy()
        kept = {*np.unique(device).tolist()}
        devices = sorted(name for name, number in self._ids.items() if number in kept)
        rank = np.zeros(len(self._ids), dtype=np.int64)
        rank[[self._ids[name] for name in devices]] = np.arange(len(devices))
        fixes = Fixes(device=rank[device], t_ms=t_ms, lat=lat, lon=lon, speed_mps=speed, accuracy_m=accuracy)
        return FixFile(
            fixes,
            tuple(devices),
            tuple(self._faults),
            self._fault_count,
            tuple(said for _, said in sorted(faults)),
            int(np.count_nonzero(wrong)),
        )


def _in_other_units(device: NDArray[np.int64], t_ms: NDArray[np.int64], count: int) -> NDArray[np.bool_]:
    """Which rows have seconds or microseconds, see `read_fixes`. A time of 0, which means *unknown*, says nothing."""
    suspect = np.zeros(len(t_ms), dtype=np.bool_)
    for low, high in _OTHER_UNITS.values():
        suspect |= (low <= t_ms) & (t_ms < high)
    has_milliseconds, has_others = np.zeros((2, count), dtype=np.bool_)
    has_milliseconds[device[(_MILLISECONDS[0] <= t_ms) & (t_ms < _MILLISECONDS[1])]] = True
    has_others[device[~suspect & (t_ms != 0)]] = True
    return suspect & (has_milliseconds | ~has_others)[device]


def _unit_faults(
    names: Sequence[str], device: NDArray[np.int64], t_ms: NDArray[np.int64], lines: NDArray[np.int64]
) -> Iterator[_Fault]:
    """A message for each device, and its first line."""
    order = np.argsort(device, kind="stable")
    owners, begins = np.unique(device[order], return_index=True)
    for owner, rows in zip(owners.tolist(), np.split(order, begins[1:]), strict=False):
        first, times = rows[0], t_ms[rows]
        unit = next(unit for unit, (low, high) in _OTHER_UNITS.items() if low <= t_ms[first] < high)
        span = f"{times.min()} to {times.max()}"
        left_out = f"{len(rows):,} row{'' if len(rows) == 1 else 's'} of it left out"
        said = f"device {names[owner]!r}: t_ms holds {unit} ({span}), and takes milliseconds: {left_out}"
        yield int(lines[first]), f"line {lines[first]}: {said}"


def _near_equal_faults(ids: Mapping[str, int], first_lines: NDArray[np.int64]) -> Iterator[tuple[list[int], _Fault]]:
    """The devices of each group whose ids read the same, and a message with its first line."""
    for group in near_equal(ids):
        numbers = [ids[name] for name in group]
        (first, name), *others = sorted((int(first_lines[ids[name]]), name) for name in group)
        read_same = ", ".join(f"{other!a} (line {line})" for line, other in others)
        said = f"the device is written {name!a}, and {read_same} reads the same: all rows of them are left out"
        yield numbers, (first, f"line {first}: {said}")


def _time(cell: str) -> int:
    # The length first: int() takes time by the square of it.
    if len(cell) > MAX_NUMBER_CHARS or not _WHOLE.fullmatch(cell) or abs(int(cell)) >= MAX_TIME_MS:
        raise _Malformed(f"t_ms {_shown(cell)} is not a whole number of milliseconds below 2^53")
    return int(cell)


def _number(name: str, limit: float, is_optional: bool, cell: str) -> float:
    if is_optional and (not cell or cell.lower() == "nan"):
        return math.nan
    value = float(cell) if len(cell) <= MAX_NUMBER_CHARS and _DECIMAL.fullmatch(cell) else math.inf
    if not -limit <= value <= limit:
        if math.isinf(value):
            raise _Malformed(f"{name} {_shown(cell)} is not a number")
        raise _Malformed(f"{name} {cell} is outside ±{limit:g}")
    return value


def _shown(cell: str) -> str:
    return repr(cell) if len(cell) <= MAX_NUMBER_CHARS else f"{cell[:20]!r}... of {len(cell)} characters"
