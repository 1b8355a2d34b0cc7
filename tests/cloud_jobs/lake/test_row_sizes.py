"""Pieces of rows are bounded by the bytes that their texts take in memory, however they are held."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.lake import data_files as row_sizes
from cloud_jobs.lake.data_files import in_pieces, text_lengths

texts = st.lists(st.none() | st.text(max_size=30), max_size=60)


@given(texts, st.booleans())
def test_pieces_are_the_rows_in_order_and_none_has_more_than_allowed(values: list[str | None], encoded: bool) -> None:
    column = pa.chunked_array([pa.array(values, pa.string())])
    rows = pa.table({"text": column.dictionary_encode() if encoded else column, "at": range(len(values))})
    sizes = [len((value or "").encode()) for value in values]
    assert text_lengths(rows).tolist() == sizes
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(row_sizes, "PIECE_BYTES", 64)
        pieces = [*in_pieces(rows, 20)]
    assert [at for piece in pieces for at in piece["at"].to_pylist()] == [*range(len(values))]
    for piece in pieces:
        assert 0 < piece.num_rows <= 20
        assert piece.num_rows == 1 or sum(sizes[at] for at in piece["at"].to_pylist()) <= 64
    assert len(pieces) <= 1 + len(values) // 20 + 2 * sum(sizes) // 64
