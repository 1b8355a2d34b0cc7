"""Coverage as rows of a file, and the union of many such rows at once. Pure, on Arrow.

A million rows are united in about a second: no row becomes an object, but those with tombstones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cloud_jobs.lake.coverage import Coverage, DeviceStream
from cloud_jobs.lake.stream_order import stream_codes
from waybill.record import IntervalSet, Tombstone

Integers = NDArray[np.int64]

COVERAGE_ROWS = pa.schema(
    [
        pa.field("tenant", pa.string(), nullable=False),
        pa.field("device", pa.string(), nullable=False),
        pa.field("epoch", pa.int64(), nullable=False),
        pa.field("head", pa.int64(), nullable=False),
        pa.field("stated_us", pa.int64(), nullable=False),
        pa.field("stated_head", pa.int64(), nullable=False),
        pa.field("complete_until_us", pa.int64(), nullable=False),
        pa.field("received", pa.list_(pa.int64()), nullable=False),
        pa.field("lost", pa.list_(pa.int64()), nullable=False),
        pa.field("reasons", pa.list_(pa.string()), nullable=False),
    ]
)
"""What is known, or became known, of a device stream. `received`: first, last, first, last, ..., apart and ascending;
`lost`: the same of its tombstones, each of which has its reason in `reasons`. The other columns: see Coverage."""
COVERAGE_DEVICES = pa.schema([COVERAGE_ROWS.field(name) for name in ("tenant", "device")])
"""Whose they are."""


def to_rows(known: Mapping[DeviceStream, Coverage]) -> pa.Table:
    """A row for each device stream, in order."""
    streams = sorted(known)
    coverages = [known[stream] for stream in streams]
    columns = {
        "tenant": [stream.tenant for stream in streams],
        "device": [stream.device for stream in streams],
        "epoch": [stream.epoch for stream in streams],
        "head": [coverage.head for coverage in coverages],
        "stated_us": [coverage.stated_us for coverage in coverages],
        "stated_head": [coverage.stated_head for coverage in coverages],
        "complete_until_us": [coverage.complete_until_us for coverage in coverages],
        "received": [[bound for bounds in coverage.received.ranges for bound in bounds] for coverage in coverages],
        "lost": [[bound for tombstone in coverage.tombstones for bound in tombstone[:2]] for coverage in coverages],
        "reasons": [[tombstone.reason for tombstone in coverage.tombstones] for coverage in coverages],
    }
    return pa.table(columns, schema=COVERAGE_ROWS)


def from_rows(rows: pa.Table) -> Iterator[tuple[DeviceStream, Coverage]]:
    """Each row's device stream and coverage. Raises ValueError."""
    for batch in rows.to_batches(max_chunksize=10_000):
        for row in batch.to_pylist():
            received, lost = row["received"], row["lost"]
            tombstones = zip(lost[::2], lost[1::2], row["reasons"], strict=True)
            yield (
                DeviceStream(row["tenant"], row["device"], row["epoch"]),
                Coverage(
                    IntervalSet(zip(received[::2], received[1::2], strict=True)),
                    tuple(Tombstone(*one) for one in tombstones),
                    row["head"],
                    row["stated_us"],
                    row["stated_head"],
                    row["complete_until_us"],
                ),
            )


def unite(tables: Iterable[pa.Table]) -> pa.Table:
    """One row for each device stream of the tables, in order: the union of its rows.

    Of two reasons for one tombstone the one in the earlier table stays.
    """
    rows = pa.concat_tables([COVERAGE_ROWS.empty_table(), *tables]).combine_chunks()
    code = stream_codes(rows)
    if not len(code):
        return rows
    order = np.argsort(code, kind="stable")
    rows, code = rows.take(pa.array(order)).combine_chunks(), code[order]
    starts = np.flatnonzero(np.r_[True, code[1:] != code[:-1]])
    if len(starts) == len(code):
        return rows
    # from here on a device stream is its place in the result
    stream = np.repeat(np.arange(len(starts)), np.diff(np.r_[starts, len(code)]))
    first_rows = rows.select(["tenant", "device", "epoch"]).take(pa.array(starts))
    lost, reasons = _united_tombstones(rows, stream, len(starts))
    stated_us, stated_head = _latest_statements(rows, stream, starts)
    columns = {
        "tenant": first_rows["tenant"],
        "device": first_rows["device"],
        "epoch": first_rows["epoch"],
        "head": np.maximum.reduceat(rows["head"].to_numpy(), starts),
        "stated_us": stated_us,
        "stated_head": stated_head,
        "complete_until_us": np.maximum.reduceat(rows["complete_until_us"].to_numpy(), starts),
        "received": _united_ranges(_list_column(rows, "received"), stream, len(starts)),
        "lost": lost,
        "reasons": reasons,
    }
    return pa.table(columns, schema=COVERAGE_ROWS)


def _latest_statements(rows: pa.Table, stream: Integers, starts: Integers) -> tuple[Integers, Integers]:
    """(stated_us, stated_head) of each stream: the latest, of two at one moment that of the higher head."""
    stated_us, heads = rows["stated_us"].to_numpy(), rows["stated_head"].to_numpy()
    latest_us = np.maximum.reduceat(stated_us, starts)
    return latest_us, np.maximum.reduceat(np.where(stated_us == latest_us[stream], heads, 0), starts)


def _list_column(rows: pa.Table, name: str) -> pa.ListArray:
    column = rows[name].combine_chunks()
    return column.chunk(0) if isinstance(column, pa.ChunkedArray) else column


def _lengths(lists: pa.ListArray) -> Integers:
    lengths: Integers = lists.value_lengths().to_numpy().astype(np.int64)
    return lengths


def _lists(lengths: Integers, values: pa.Array) -> pa.ListArray:
    offsets = np.r_[0, np.cumsum(lengths)].astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values)


def _united_ranges(lists: pa.ListArray, stream: Integers, count: int) -> pa.ListArray:
    of = np.repeat(stream, _lengths(lists) // 2)
    bounds = lists.flatten().to_numpy()
    first, last = bounds[::2], bounds[1::2]
    order = np.lexsort((first, of))
    of, first = of[order], first[order]
    last = _highest_so_far(last[order], of)
    begins = np.ones(len(first), bool)
    # neighbours become one range, as in an IntervalSet
    begins[1:] = (of[1:] != of[:-1]) | (first[1:] - 1 > last[:-1])
    at = np.flatnonzero(begins)
    ends = np.r_[at[1:], len(first)] - 1 if len(at) else at
    joined = np.column_stack([first[at], last[ends]]).ravel()
    return _lists(np.bincount(of[at], minlength=count) * 2, pa.array(joined, pa.int64()))


def _highest_so_far(values: Integers, group: Integers) -> Integers:
    """The highest of the values up to each, among those of its group; groups stand together and ascend."""
    if not len(values):
        return values
    by_value = np.argsort(values, kind="stable")
    rank = np.empty(len(values), np.int64)
    rank[by_value] = np.arange(len(values))
    # ranks, not the values themselves: with the group in front those would not fit into 64 bits
    highest = np.maximum.accumulate(group * len(values) + rank) - group * len(values)
    found: Integers = values[by_value][highest]
    return found


def _united_tombstones(rows: pa.Table, stream: Integers, count: int) -> tuple[pa.ListArray, pa.ListArray]:
    found: dict[int, Coverage] = {}
    having = np.flatnonzero(_lengths(_list_column(rows, "reasons")))
    for at, (_, coverage) in zip(having.tolist(), from_rows(rows.take(pa.array(having))), strict=True):
        place = int(stream[at])
        found[place] = found.get(place, Coverage()) | Coverage(tombstones=coverage.tombstones)
    lengths = np.zeros(count, np.int64)
    tombstones: list[Tombstone] = []
    for place, coverage in sorted(found.items()):
        lengths[place] = len(coverage.tombstones)
        tombstones.extend(coverage.tombstones)
    bounds = [bound for tombstone in tombstones for bound in tombstone[:2]]
    return _lists(lengths * 2, pa.array(bounds, pa.int64())), _lists(
        lengths, pa.array([tombstone.reason for tombstone in tombstones], pa.string())
    )
