"""How many bytes the texts of rows take in memory, and rows in pieces that are bounded by it. Pure, on Arrow.

What a text takes in a file says nothing of it: a thousand equal payloads of a megabyte are one of a few bytes there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

PIECE_ROWS: Final = 1 << 17
PIECE_BYTES: Final = 32 << 20
"""The most rows of a piece, and the most bytes of its texts, but for a row that alone has more."""


def is_text(kind: pa.DataType) -> bool:
    """Whether values of a type are texts or bytes of any length, also as a dictionary."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def text_lengths(rows: pa.Table) -> NDArray[np.int64]:
    """How many bytes the texts of each row take together, as if each value stood for itself."""
    lengths = np.zeros(rows.num_rows, np.int64)
    for column in _texts(rows):
        if column.null_count == len(column):
            continue
        at = 0
        for chunk in column.chunks:
            lengths[at : at + len(chunk)] += _lengths(chunk)
            at += len(chunk)
    return lengths


def in_pieces(rows: pa.Table, at_most: int = PIECE_ROWS) -> Iterator[pa.Table]:
    """Rows in their order, in pieces of at most so many rows and PIECE_BYTES."""
    for first in range(0, rows.num_rows, at_most):
        some = rows.slice(first, at_most)
        if sum(map(_at_most, _texts(some))) <= PIECE_BYTES:
            yield some
            continue
        ends, at = np.cumsum(text_lengths(some)), 0
        while at < some.num_rows:
            before = ends[at - 1] if at else 0
            until = max(at + 1, int(np.searchsorted(ends, before + PIECE_BYTES, side="right")))
            yield some.slice(at, until - at)
            at = until


def _texts(rows: pa.Table) -> list[pa.ChunkedArray]:
    return [column for column in rows.columns if is_text(column.type)]


def _at_most(column: pa.ChunkedArray) -> int:
    """What the values of a column cannot exceed; found without looking at each."""
    if not pa.types.is_dictionary(column.type):
        return int(column.nbytes)
    return sum(len(chunk) * (pc.max(pc.binary_length(chunk.dictionary)).as_py() or 0) for chunk in column.chunks)


def _lengths(chunk: pa.Array) -> NDArray[np.int64]:
    if not pa.types.is_dictionary(chunk.type):
        return _filled(pc.binary_length(chunk))
    return _filled(pc.binary_length(chunk.dictionary).take(chunk.indices))


def _filled(lengths: pa.Array) -> NDArray[np.int64]:
    filled: NDArray[np.int64] = pc.fill_null(lengths, 0).to_numpy().astype(np.int64)
    return filled
