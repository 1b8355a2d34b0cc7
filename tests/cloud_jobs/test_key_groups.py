"""Sorted rows come out as they went in, in tables that hold whole keys."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.derived.incremental import group_by_key

SCHEMA = pa.schema([pa.field("key", pa.string()), pa.field("number", pa.int64())])
runs = st.lists(st.integers(1, 9), max_size=8)


def batches(lengths: list[int], cuts: list[int]) -> list[pa.RecordBatch]:
    """Rows of keys that follow on each other, each as often as its length, cut into batches; some are empty."""
    keys = [f"k{at}" for at, length in enumerate(lengths) for _ in range(length)]
    table = pa.table({"key": keys, "number": pa.array(range(len(keys)), pa.int32())})
    bounds = [0, *sorted(cut % (len(keys) + 1) for cut in cuts), len(keys)]
    empty = pa.RecordBatch.from_pylist([], schema=table.schema)
    parts = [table.slice(low, high - low).combine_chunks().to_batches() or [empty] for low, high in pairwise(bounds)]
    return [part[0] for part in parts]


@given(runs, st.lists(st.integers(0, 80), max_size=5), st.integers(1, 12))
def test_no_key_is_in_two_tables_and_no_row_is_lost_or_moved(lengths: list[int], cuts: list[int], most: int) -> None:
    tables = list(group_by_key(batches(lengths, cuts), SCHEMA, "key", most))
    assert [number for table in tables for number in table["number"].to_pylist()] == list(range(sum(lengths)))
    keys = [set(table["key"].to_pylist()) for table in tables]
    assert sum(len(of) for of in keys) == len(set().union(*keys)) == len(lengths)
    assert all(table.schema == SCHEMA and table.num_rows for table in tables)


@given(runs, st.integers(1, 12))
def test_a_table_has_no_more_rows_than_asked_for_and_a_batch_beside(lengths: list[int], most: int) -> None:
    rows = batches(lengths, list(range(sum(lengths))))
    for table in group_by_key(rows, SCHEMA, "key", most):
        # rows came one by one: only a key that is longer than the limit makes a table longer
        assert table.num_rows < most or len(set(table["key"].to_pylist())) == 1
