"""A column of texts as numbers into the different ones."""

from __future__ import annotations

import pyarrow as pa


def encoded(column: pa.ChunkedArray) -> pa.DictionaryArray:
    """A column in one piece, as a dictionary; one text may stand twice in it."""
    found = column.combine_chunks()
    found = found.chunk(0) if isinstance(found, pa.ChunkedArray) else found
    return found if pa.types.is_dictionary(found.type) else found.dictionary_encode()
