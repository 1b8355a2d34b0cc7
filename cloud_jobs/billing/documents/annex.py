"""The annex of a document: each vehicle's part of a line, an entry in the document and a row of columns in its digest.

A large month has ten million of them: as columns they take a fifth of the time to write, and a tenth of the memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

from cloud_jobs.billing.rating import Charge
from geo.reference.moments import stamp

Columns = Mapping[str, Sequence[Any]]
Entry = dict[str, Any]
_COUNTED: Final = ("quantity_base", "free_base", "amount_minor")
_OF_CHARGE: Final = ("line", "tenant", "device", *_COUNTED)
_METERED: Final = ("rows", "first_hour", "last_hour", "digest")
_COLUMNS: Final = (*_OF_CHARGE, *_METERED)
_NOT_METERED: Final = (None,) * len(_METERED)
_KEY: Final = attrgetter("key")


UNKNOWN: Final = ("unknown_ms", "unknown_mm", "inferred_entries")
"""What a certificate says of a way that is unknown: it is on no line."""


def unknown_way(certificate: Mapping[str, Any]) -> Entry:
    """What of a device's way is unknown, by its certificate as JSON has it."""
    return {name: certificate[name] for name in ("tenant", "device", *UNKNOWN)}


def annex_columns(charges_by_line: Iterable[Iterable[Charge]], sign: int) -> Columns:
    """The annex of the charges of each line, numbered from 1, as columns; each line's by vehicle."""
    numbers: list[int] = []
    charges: list[Charge] = []
    for number, of_line in enumerate(charges_by_line, 1):
        # all else of their keys is the same in a line
        charges += sorted(of_line, key=_KEY)
        numbers += [number] * (len(charges) - len(numbers))
    if not charges:
        return {name: [] for name in _COLUMNS}
    keys, *counted, metered = zip(*charges, strict=True)
    rows, first, last, digests = zip(*(one or _NOT_METERED for one in metered), strict=True)
    return {
        "line": numbers,
        "tenant": [key.tenant for key in keys],
        "device": [key.device for key in keys],
        **{name: [sign * value for value in values] for name, values in zip(_COUNTED, counted, strict=True)},
        "rows": rows,
        "first_hour": [one and stamp(one) for one in first],
        "last_hour": [one and stamp(one) for one in last],
        "digest": digests,
    }


class Annex:
    """The entries of a document's annex, each made when it is asked for: all of them take more memory than all else."""

    def __init__(self, columns: Columns) -> None:
        self._columns = [columns[name] for name in _COLUMNS]

    def __len__(self) -> int:
        return len(self._columns[0])

    def __iter__(self) -> Iterator[Entry]:
        return map(_entry, zip(*self._columns, strict=True))

    def __getitem__(self, some: slice) -> list[Entry]:
        return [_entry(row) for row in zip(*(column[some] for column in self._columns), strict=True)]


def _entry(row: Sequence[Any]) -> Entry:
    """What is of no rows of usage, as a cap, has None as `metered`."""
    metered = dict(zip(_METERED, row[len(_OF_CHARGE) :], strict=True))
    entry = dict(zip(_OF_CHARGE, row[: len(_OF_CHARGE)], strict=True))
    return {**entry, "metered": metered if metered["rows"] is not None else None}


def columns_of_entries(entries: Sequence[Entry]) -> Columns:
    """The columns of a document's annex. Raises KeyError, TypeError, AttributeError for what is none."""
    columns: dict[str, Sequence[Any]] = {name: [entry[name] for entry in entries] for name in _OF_CHARGE}
    metered = [entry["metered"] or dict.fromkeys(_METERED) for entry in entries]
    return {**columns, **{name: [one[name] for one in metered] for name in _METERED}}
