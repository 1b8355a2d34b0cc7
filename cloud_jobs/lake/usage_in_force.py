"""Which rows of usage are in force: of each tenant, device, hour and zone the one committed last. Vectorised."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cloud_jobs.errors import LakeError
from cloud_jobs.lake.schemas import QUANTITIES, QUARTERS

_HOUR_US: Final = 3_600_000_000
_MOST: Final = (1 << 63) - 1
_NO_RECORDS: Final = "{}"

_Integers = NDArray[np.int64]


def rows_in_force(rows: pa.Table) -> pa.Table:
    """Of usage rows (USAGE, or some of its columns with the key and the commit number) for each tenant, device, hour
    and zone the one of the highest commit number, in order of the keys, rows of zeros as well.

    The same row twice counts once. Raises LakeError for two rows of one key and its highest commit that differ.
    """
    if not rows.num_rows:
        return rows
    keys = _keys(rows)
    commits = rows["commit_number"].to_numpy()
    ascends = bool((keys[1:] >= keys[:-1]).all())
    order = np.arange(len(keys)) if ascends else np.argsort(keys, kind="stable")
    keys, commits = keys[order], commits[order]
    starts = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]])
    if len(starts) == len(keys):
        return rows if ascends else _taken(rows, order)
    highest = np.repeat(np.maximum.reduceat(commits, starts), np.diff(np.r_[starts, len(keys)]))
    newest = np.flatnonzero(commits == highest)
    first = np.r_[True, keys[newest[1:]] != keys[newest[:-1]]]
    again = np.flatnonzero(~first)
    _refuse_contradictions(rows, order[newest[again - 1]], order[newest[again]])
    return _taken(rows, order[newest[first]])


def rows_with_usage(rows: pa.Table) -> pa.Table:
    """Rows in force without those of zeros: of a zone that a device turned out not to have been in."""
    is_zeros = pc.equal(rows["seq_ranges"], _NO_RECORDS)
    if not pc.any(is_zeros).as_py():
        return rows
    for name in QUANTITIES:
        column = rows[name].combine_chunks()
        offsets = column.offsets.to_numpy()
        sums = np.r_[0, np.cumsum(np.abs(column.values.to_numpy()))]
        is_zeros = pc.and_(is_zeros, pa.array(sums[offsets[1:]] == sums[offsets[:-1]]))
    return rows.filter(pc.invert(is_zeros))


def _keys(rows: pa.Table) -> _Integers:
    """A number for each row that stands for its key; numbers are in the order of the keys."""
    tenants, tenant = _ranks(rows["tenant"])
    devices, device = _ranks(rows["device"])
    zones, zone = _ranks(rows["zone"])
    hour = rows["hour"].cast(pa.int64()).to_numpy() // _HOUR_US
    hour = hour - hour.min()
    named = tenant * devices + device
    # there are fewer devices than tenants times names, and rows of one mostly follow on each other
    known = np.unique(named[np.r_[True, named[1:] != named[:-1]]])
    hours = int(hour.max()) + 1
    assert max(tenants * devices, len(known) * hours * zones) <= _MOST, "a key is a signed 64-bit integer"
    found: _Integers = (np.searchsorted(known, named) * hours + hour) * zones + zone
    return found


def _ranks(column: pa.ChunkedArray) -> tuple[int, _Integers]:
    """How many texts there are, and of each row the place of its text among them in order."""
    encoded = column.cast(pa.string()).dictionary_encode().combine_chunks()
    encoded = encoded.chunk(0) if isinstance(encoded, pa.ChunkedArray) else encoded
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return len(order), rank[encoded.indices.to_numpy()]


def _taken(rows: pa.Table, at: _Integers) -> pa.Table:
    return pa.table([_taken_of(column, at) for column in rows.columns], schema=rows.schema)


def _taken_of(column: pa.ChunkedArray, at: _Integers) -> pa.Array | pa.ChunkedArray:
    if not pa.types.is_list(column.type) or column.null_count:
        return column.take(pa.array(at))
    joined = column.combine_chunks()
    joined = joined.chunk(0) if isinstance(joined, pa.ChunkedArray) else joined
    offsets = joined.offsets.to_numpy()
    if not (np.diff(offsets) == QUARTERS).all():
        return joined.take(pa.array(at))
    # Arrow takes a list at a time, which is many times slower
    values = joined.values.to_numpy()[offsets[0] : offsets[-1]].reshape(-1, QUARTERS)[at]
    return pa.ListArray.from_arrays(pa.array(np.arange(len(at) + 1, dtype=np.int32) * QUARTERS), values.reshape(-1))


def _refuse_contradictions(rows: pa.Table, one: _Integers, other: _Integers) -> None:
    """`one`, `other`: pairs of rows that share key and commit."""
    for pair in zip(one.tolist(), other.tolist(), strict=True):
        found: list[dict[str, Any]] = [rows.slice(at, 1).to_pylist()[0] for at in pair]
        if found[0] != found[1]:
            row = found[0]
            key = f"{row['tenant']}/{row['device']} at {row['hour'].isoformat()} in zone {row['zone']!r}"
            raise LakeError(f"usage of {key} was computed twice in one commit, with two results")
