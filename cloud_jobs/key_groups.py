"""From a sorted stream of rows to tables that hold whole keys: many keys at once, and never a key in two parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc


def group_by_key(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, key: str, rows_at_once: int
) -> Iterator[pa.Table]:
    """Tables of about `rows_at_once` rows. Rows of one key must follow on each other."""
    held: list[pa.Table] = []
    count = 0
    for batch in batches:
        # batches of one stream may differ in what may be null, and then are no one table
        part = pa.Table.from_batches([batch]).cast(schema)
        if not part.num_rows:
            continue
        held.append(part)
        count += part.num_rows
        if count < rows_at_once:
            continue
        table = pa.concat_tables(held)
        # rows of the last key may still come
        split = _start_of_last(table, key)
        if split:
            yield table.slice(0, split)
        held, count = [table.slice(split)], table.num_rows - split
    if held:
        yield pa.concat_tables(held)


def _start_of_last(table: pa.Table, key: str) -> int:
    return int(pc.index(table[key], table[key][-1]).as_py())
