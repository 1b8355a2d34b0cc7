"""The coverage of all device streams in the memory of the one ingest that runs: a million in half a gigabyte."""

from __future__ import annotations

from collections.abc import Mapping
from sys import intern

import pyarrow as pa
import pyarrow.compute as pc

from cloud_jobs.lake.coverage import Coverage, DeviceStream
from cloud_jobs.lake.coverage_rows import from_rows
from telemetry import IntervalSet

_Plain = tuple[int, int, int]
"""First, last, head: a stream of one range without tombstones, as nearly all are."""


class KnownCoverage:
    """What was committed of each device stream."""

    def __init__(self, rows: pa.Table) -> None:
        """`rows`: those of `coverage_rows`, one for each stream."""
        # plain tuples: those of Python that hold only numbers are no work for its garbage collector
        self._streams: dict[tuple[str, str, int], _Plain | Coverage] = {}
        # most streams never become objects: a million are read in seconds
        plain = pc.and_(
            pc.equal(pc.list_value_length(rows["received"]), 2), pc.equal(pc.list_value_length(rows["reasons"]), 0)
        )
        simple = rows.filter(plain)
        bounds = simple["received"].combine_chunks().flatten().to_pylist()
        # one text for all the streams of a tenant, not one for each
        tenants = map(intern, simple["tenant"].to_pylist())
        columns = (simple[name].to_pylist() for name in ("device", "epoch"))
        heads = simple["head"].to_pylist()
        for stream, head, first, last in zip(
            zip(tenants, *columns, strict=True), heads, bounds[::2], bounds[1::2], strict=True
        ):
            self._streams[stream] = (first, last, head)
        self.update(dict(from_rows(rows.filter(pc.invert(plain)))))

    def get(self, stream: DeviceStream) -> Coverage | None:
        """The coverage of a stream, None if nothing was heard of it."""
        found = self._streams.get(stream)
        if found is None or isinstance(found, Coverage):
            return found
        first, last, head = found
        return Coverage(IntervalSet([(first, last)]), head=head)

    def update(self, coverage: Mapping[DeviceStream, Coverage]) -> None:
        """Takes over the new state of streams."""
        for stream, new in coverage.items():
            ranges = new.received.ranges
            plain = len(ranges) == 1 and not new.tombstones
            self._streams[intern(stream.tenant), stream.device, stream.epoch] = (*ranges[0], new.head) if plain else new

    def __len__(self) -> int:
        return len(self._streams)
