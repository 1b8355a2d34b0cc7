"""The coverage of all device streams in the memory of the one ingest that runs: a million in some 400 MB.

A stream without tombstones, as nearly all are, is kept packed: its ranges, its head and what it stated as 64-bit
integers, one after the other. So one with gaps takes 16 bytes more for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, pairwise
from operator import attrgetter
from struct import pack, unpack
from sys import intern
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cloud_jobs.lake.coverage import Coverage, DeviceStream
from cloud_jobs.lake.coverage_rows import from_rows
from waybill.record import IntervalSet

_Key = tuple[str, str, int]
_ROWS_AT_ONCE: Final = 50_000
_NUMBERS: Final = ("head", "stated_us", "stated_head", "complete_until_us")
"""The numbers of a Coverage in their order, which are also columns of its rows."""
_numbers_of: Final = attrgetter(*_NUMBERS)


class KnownCoverage:
    """What was committed of each device stream."""

    def __init__(self, rows: pa.Table) -> None:
        """`rows`: those of `coverage_rows`, one for each stream."""
        self._streams: dict[_Key, bytes | Coverage] = {}
        # some at a time: what stands beside them while they are read is soon the larger part
        for batch in rows.to_batches(max_chunksize=_ROWS_AT_ONCE):
            is_plain = pc.equal(pc.list_value_length(batch["reasons"]), 0)
            self._streams |= _packed(batch.filter(is_plain))
            self.update(dict(from_rows(pa.Table.from_batches([batch.filter(pc.invert(is_plain))]))))

    def get(self, stream: DeviceStream) -> Coverage | None:
        """The coverage of a stream, None if nothing was heard of it."""
        found = self._streams.get(stream)
        if found is None or isinstance(found, Coverage):
            return found
        numbers = unpack(f"={len(found) // 8}q", found)
        bounds = numbers[: -len(_NUMBERS)]
        return Coverage(IntervalSet(zip(bounds[::2], bounds[1::2], strict=True)), (), *numbers[-len(_NUMBERS) :])

    def update(self, coverage: Mapping[DeviceStream, Coverage]) -> None:
        """Takes over the new state of streams."""
        for stream, new in coverage.items():
            numbers = [*chain.from_iterable(new.received.ranges), *_numbers_of(new)]
            kept = new if new.tombstones else pack(f"={len(numbers)}q", *numbers)
            self._streams[intern(stream.tenant), stream.device, stream.epoch] = kept

    def __len__(self) -> int:
        return len(self._streams)


def _packed(rows: pa.RecordBatch) -> Iterator[tuple[_Key, bytes]]:
    """Streams without tombstones. None becomes an object on the way: a million are read in seconds."""
    lengths = np.r_[0, pc.list_value_length(rows["received"]).to_numpy()]
    bounds = rows["received"].flatten().to_numpy().astype("=i8").tobytes()
    numbers = np.column_stack([rows[name].to_numpy() for name in _NUMBERS]).astype("=i8").tobytes()
    width = 8 * len(_NUMBERS)
    # one text for all the streams of a tenant, not one for each
    tenants = map(intern, rows["tenant"].to_pylist())
    columns = (rows[name].to_pylist() for name in ("device", "epoch"))
    places = pairwise((8 * np.cumsum(lengths)).tolist())
    for at, (stream, (start, end)) in enumerate(zip(zip(tenants, *columns, strict=True), places, strict=True)):
        yield stream, bounds[start:end] + numbers[width * at : width * (at + 1)]
