"""Rows in pieces that fit into memory: sampled keys part them into ranges, and each file is read only where it must.

A key is the values of the columns that a table is sorted by. Texts are read as dictionaries: of many equal ones one is
held until it is known which rows are taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from cloud_jobs.lake.row_sizes import is_text, text_lengths

Key = tuple[Any, ...]
_BYTES_OF_ROW: Final = 1000
"""What a row takes in memory while it is read, sorted and written, all copies together, but for long texts."""
_COPIES: Final = 4
"""So often a text is in memory meanwhile."""
_FINENESS: Final = 8
"""The samples of all files together are exact to this part of a range."""
_MOST: Final = 4 << 30
"""What a range may take at most: an Arrow column of texts holds 2 GiB."""


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

    def ranges(self, at_most: int) -> list[KeyRange]:
        """Ranges that part all keys, each with rows that take about the same memory, mostly no more than `at_most`."""
        at_most = min(at_most, _MOST)
        step = max(1, at_most // (_FINENESS * len(self.paths)))
        samples = sorted(chain.from_iterable(self._samples(path, step) for path in self.paths))
        total = sum(size for _, size in samples)
        parts = -(-total // at_most)
        # a little more ranges than needed: samples say only about how much lies between them
        cuts = _cuts(samples, total / (parts + -(-parts // _FINENESS))) if parts > 1 else []
        return [KeyRange(low, high) for low, high in zip([None, *cuts], [*cuts, None], strict=True)]

    def read(self, keys: KeyRange) -> pa.Table:
        """The rows of a range, in no order."""
        found = [self.schema.empty_table()]
        for path in self.paths:
            found += self._read(path, keys)
        return pa.concat_tables(found).combine_chunks()

    def _read(self, path: str, keys: KeyRange) -> Iterator[pa.Table]:
        with self.files.open_input_file(path) as opened:
            file = pq.ParquetFile(opened, read_dictionary=self._texts)
            there = set(file.schema_arrow.names)
            wanted = [name for name in self.schema.names if name in there]
            for group in range(file.num_row_groups):
                if _may_hold(file.metadata.row_group(group), self.order, keys):
                    rows = file.read_row_group(group, columns=wanted, use_threads=False)
                    inside = _inside(_conformed(rows, self._keys), self.order, keys)
                    yield _conformed(rows if inside is None else rows.filter(inside), self.schema)

    def _samples(self, path: str, step: int) -> Iterator[tuple[Key, int]]:
        """Each key at which about as much more memory is needed as a step, or a multiple of it, and how much."""
        with self.files.open_input_file(path) as opened:
            file = pq.ParquetFile(opened, read_dictionary=self._texts)
            wanted = [*self.order, *(name for name in self._texts if name in file.schema_arrow.names)]
            held = 0
            for batch in file.iter_batches(batch_size=1 << 17, columns=wanted, use_threads=False):
                rows = pa.Table.from_batches([batch])
                ends = held + np.cumsum(_BYTES_OF_ROW + _COPIES * text_lengths(rows.drop_columns([*self.order])))
                steps = np.diff(ends // step, prepend=0)
                chosen = np.flatnonzero(steps)
                held = int(ends[-1] % step) if len(ends) else held
                columns = _conformed(rows.take(pa.array(chosen)), self._keys).to_pydict()
                yield from zip(zip(*columns.values(), strict=True), (steps[chosen] * step).tolist(), strict=True)

    @property
    def _texts(self) -> list[str]:
        return [field.name for field in self.schema if is_text(field.type) and field.name not in self.order]

    @property
    def _keys(self) -> pa.Schema:
        return pa.schema([self.schema.field(name) for name in self.order])


def _conformed(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    # another writer may have left other types of text, or a column that came later
    columns = [
        rows[field.name].cast(field.type) if field.name in rows.column_names else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _cuts(samples: Iterable[tuple[Key, int]], size: float) -> list[Key]:
    """The keys at which ranges of about a size begin, but for the first one."""
    cuts: list[Key] = []
    held = 0
    for key, more in samples:
        if held >= size and cuts[-1:] != [key]:
            cuts.append(key)
            held = 0
        held += more
    return cuts


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
