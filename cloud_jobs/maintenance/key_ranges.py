"""Rows in pieces that fit into memory: sampled keys part them into ranges, and each file is read only where it must.

A key is the values of the columns that a table is sorted by.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

Key = tuple[Any, ...]
_SAMPLES: Final = 20_000
"""About so many keys are looked at to part the rows."""


class KeyRange(NamedTuple):
    """The keys from `low` on, and below `high`; None: without an end."""

    low: Key | None
    high: Key | None


class RowSource(NamedTuple):
    """Files with rows of one table: where they are, the columns that their readers want, and the columns of the key."""

    files: FileSystem
    paths: tuple[str, ...]
    schema: pa.Schema
    order: tuple[str, ...]

    def ranges(self, rows: int, at_most: int) -> list[KeyRange]:
        """Ranges that part all keys, each with about the same number of rows, mostly no more than `at_most`."""
        parts = -(-rows // at_most)
        if parts <= 1:
            return [KeyRange(None, None)]
        step = max(1, min(rows // _SAMPLES, at_most // (8 * len(self.paths))))
        samples = sorted(key for path in self.paths for key in self._samples(path, step))
        # a little more ranges than needed: samples say only about how many rows lie between them
        parts += -(-parts // 8)
        cuts = sorted({samples[len(samples) * at // parts] for at in range(1, parts)})
        return [KeyRange(low, high) for low, high in zip([None, *cuts], [*cuts, None], strict=True)]

    def read(self, keys: KeyRange) -> pa.Table:
        """The rows of a range, in no order."""
        found = [self.schema.empty_table()]
        for path in self.paths:
            found += self._read(path, keys)
        return pa.concat_tables(found).combine_chunks()

    def _read(self, path: str, keys: KeyRange) -> Iterator[pa.Table]:
        with self.files.open_input_file(path) as opened:
            file = pq.ParquetFile(opened)
            there = set(file.schema_arrow.names)
            wanted = [name for name in self.schema.names if name in there]
            for group in range(file.num_row_groups):
                if _may_hold(file.metadata.row_group(group), self.order, keys):
                    rows = self._conformed(file.read_row_group(group, columns=wanted, use_threads=False))
                    inside = _inside(rows, self.order, keys)
                    yield rows if inside is None else rows.filter(inside)

    def _conformed(self, rows: pa.Table) -> pa.Table:
        # another writer may have left other types of text, or a column that came later
        columns = [
            rows[field.name].cast(field.type)
            if field.name in rows.column_names
            else pa.nulls(rows.num_rows, field.type)
            for field in self.schema
        ]
        return pa.table(columns, schema=self.schema)

    def _samples(self, path: str, step: int) -> Iterator[Key]:
        with self.files.open_input_file(path) as opened:
            file = pq.ParquetFile(opened)
            at = 0
            for batch in file.iter_batches(batch_size=1 << 17, columns=[*self.order], use_threads=False):
                chosen = np.arange(-at % step, batch.num_rows, step)
                at += batch.num_rows
                columns = [batch[name].take(pa.array(chosen)).to_pylist() for name in self.order]
                yield from zip(*columns, strict=True)


def _may_hold(group: Any, order: Sequence[str], keys: KeyRange) -> bool:
    low, high = _ends(group, order)
    # of keys that begin alike the shorter one says nothing of the rest
    too_low = keys.low is not None and high < keys.low[: len(high)]
    return not (too_low or (keys.high is not None and low > keys.high[: len(low)]))


def _ends(group: Any, order: Sequence[str]) -> tuple[Key, Key]:
    """Between which keys the rows of a row group lie, as far as its statistics of each column say."""
    columns = {group.column(at).path_in_schema: group.column(at).statistics for at in range(group.num_columns)}
    low: list[Any] = []
    high: list[Any] = []
    for name in order:
        statistics = columns.get(name)
        if statistics is None or not statistics.has_min_max:
            break
        low.append(statistics.min)
        high.append(statistics.max)
        if statistics.min != statistics.max:
            break
    return tuple(low), tuple(high)


def _inside(rows: pa.Table, order: Sequence[str], keys: KeyRange) -> pa.ChunkedArray | None:
    """Which rows are of the range; None: all."""
    if keys.low is None and keys.high is None:
        return None
    inside = pa.chunked_array([pa.repeat(pa.scalar(True), rows.num_rows)])
    if keys.low is not None:
        inside = pc.and_(inside, pc.invert(_below(rows, order, keys.low)))
    if keys.high is not None:
        inside = pc.and_(inside, _below(rows, order, keys.high))
    return inside


def _below(rows: pa.Table, order: Sequence[str], key: Key) -> Any:
    """Which rows have a key before this one."""
    column, bound = rows[order[0]], pa.scalar(key[0], rows.schema.field(order[0]).type)
    below = pc.less(column, bound)
    if len(order) == 1:
        return below
    return pc.or_(below, pc.and_(pc.equal(column, bound), _below(rows, order[1:], key[1:])))
