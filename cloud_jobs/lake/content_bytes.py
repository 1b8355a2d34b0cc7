"""What of a record is metered by its content: whether it is a customer's event, and how many bytes it says.

Both are functions of the content alone, however it was packed, sent or sent again. A name with RESERVED_PREFIX makes a
record the system's own, as `waybill.too_large` of the agent: it is no event that a customer pays for, and no byte.

A record counts 16 bytes for its place in its stream and its device time, 8 bytes for each number that it has, and the
bytes of its texts (in UTF-8) and of its payload. Why a record is raw is the agent's word, and counts nothing.
What the wire saves by packing many records together depends on the
others that travelled with it, and is nothing that a customer could check.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from waybill.record import RESERVED_PREFIX

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
    is_raw = _is_of(columns, "raw")
    if is_raw.any():
        reasons = pc.fill_null(pc.binary_length(columns["text"]), 0)
        found[is_raw] -= np.asarray(reasons).astype(np.int32)[is_raw]
    found[_is_of(columns, "event") & _is_reserved(columns)] = 0
    return pa.array(found)


def is_customer_event(columns: Mapping[str, pa.Array | pa.ChunkedArray] | pa.Table) -> NDArray[np.bool_]:
    """Which records count as events, of the columns `kind` and `name`."""
    found: NDArray[np.bool_] = _is_of(columns, "event") & ~_is_reserved(columns)
    return found


def _is_of(columns: Mapping[str, pa.Array | pa.ChunkedArray] | pa.Table, kind: str) -> NDArray[np.bool_]:
    return np.asarray(pc.equal(columns["kind"].cast(pa.string()), kind), np.bool_)


def _is_reserved(columns: Mapping[str, pa.Array | pa.ChunkedArray] | pa.Table) -> NDArray[np.bool_]:
    return np.asarray(pc.fill_null(pc.starts_with(columns["name"], RESERVED_PREFIX), False), np.bool_)
