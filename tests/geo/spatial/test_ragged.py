"""Arrays of unequal rows, held flat."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from geo.spatial.ragged import lexical

small, any_whole = st.integers(-3, 3), st.integers(-(1 << 63), (1 << 63) - 1)


@given(st.lists(st.tuples(small | any_whole, small, small | any_whole)), st.integers(1, 3))
def test_rows_are_ordered_by_their_keys_and_rows_alike_keep_their_order(
    rows: list[tuple[int, int, int]], keys: int
) -> None:
    columns = [np.array([row[at] for row in rows], dtype=np.int64) for at in range(keys)]
    assert lexical(*columns).tolist() == sorted(range(len(rows)), key=lambda row: rows[row][:keys])
