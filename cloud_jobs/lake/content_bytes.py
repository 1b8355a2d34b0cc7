"""How much a record says, in bytes: a function of its content alone, however it was packed, sent or sent again.

A record counts 16 bytes for its place in its stream and its device time, 8 bytes for each number that it has, and the
bytes of its texts (in UTF-8) and of its payload. What the wire saves by packing many records together depends on the
others that travelled with it, and is nothing that a customer could check.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

RECORD_BYTES: Final = 16
"""What every record counts, whatever is in it: no record says nothing."""
NUMBER_BYTES: Final = 8
NUMBERS: Final = ("latitude", "longitude", "altitude_m", "speed_mps", "heading_deg", "accuracy_m", "number")
TEXTS: Final = ("name", "text", "payload")
"""The columns of the records table that count, by their kind."""


def content_bytes(columns: Mapping[str, pa.Array | pa.ChunkedArray]) -> pa.Array:
    """The bytes (int32) of each record, of columns as the records table has them; a null counts nothing."""
    found = np.full(len(columns[NUMBERS[0]]), RECORD_BYTES, np.int32)
    for name in NUMBERS:
        column = columns[name]
        if column.null_count == 0:
            found += NUMBER_BYTES
        elif column.null_count < len(column):
            found += NUMBER_BYTES * np.asarray(pc.is_valid(column).cast(pa.int8())).astype(np.int32)
    for name in TEXTS:
        column = columns[name]
        if column.null_count < len(column):
            found += np.asarray(pc.fill_null(pc.binary_length(column), 0)).astype(np.int32)
    return pa.array(found)
