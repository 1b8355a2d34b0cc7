"""The fixes that are held of devices, of whatever lengths, against lists."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gateway.alerts.fixes import IN_TABLE, FixRows, HeldFixes

_SLOTS = 5
_LENGTHS = st.integers(0, 2 * IN_TABLE)
_WRITES = st.lists(st.dictionaries(st.integers(0, _SLOTS - 1), _LENGTHS, min_size=1), min_size=1, max_size=6)


def _rows(lengths: list[int], first: int) -> FixRows:
    """Of so many fixes each, all numbers different; reals that are not numbers among them."""
    owner = np.repeat(np.arange(len(lengths)), lengths)
    numbers = first + np.arange(len(owner))
    reals = np.where(numbers % 3 == 0, np.nan, numbers / 7.0)
    return FixRows(owner, numbers, numbers + 1, numbers + 2, reals, reals + 1, reals + 2, reals + 3)


def _plain(rows: FixRows) -> list[list[tuple[str, ...]]]:
    found: list[list[tuple[str, ...]]] = [[] for _ in range(_SLOTS)]
    for owner, *values in zip(*(column.tolist() for column in rows), strict=True):
        found[owner].append(tuple(map(str, values)))
    return found


@given(_WRITES)
def test_what_is_read_is_what_was_written_last_and_the_newest_is_its_end(writes: list[dict[int, int]]) -> None:
    held, kept, first = HeldFixes(), [list[tuple[str, ...]]() for _ in range(_SLOTS)], 0
    held.reserve(_SLOTS)
    for lengths in writes:
        slots = np.array(sorted(lengths), dtype=np.int64)
        rows = _rows([lengths[slot] for slot in slots.tolist()], first)
        first += len(rows.owner)
        held.write(slots, rows)
        for slot, fixes in zip(slots.tolist(), _plain(rows), strict=False):
            kept[slot] = fixes
    everyone = np.arange(_SLOTS)
    assert _plain(held.read(everyone)) == kept
    newest = _plain(held.last(everyone))
    assert [fixes[-1] for fixes in kept if fixes] == [newest[slot][0] for slot in range(_SLOTS) if kept[slot]]
    assert held.lengths(everyone).tolist() == [len(fixes) for fixes in kept]
