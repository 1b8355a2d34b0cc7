"""Spans of time (days, slices) that cannot be computed again, because positions that had a say in them are erased."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date

import pyarrow as pa
import pyarrow.compute as pc

from cloud_jobs.lake.erasures import Erasures

COUNTED = pa.schema([pa.field("fixes", pa.int64())])


@dataclass(frozen=True, slots=True)
class ErasedSpans:
    """Which spans of `span_ms` keep what was computed: their fixes, or some `margin_ms` before, may be erased."""

    erasures: Erasures
    span_ms: int
    margin_ms: int

    def __bool__(self) -> bool:
        return bool(self.erasures)

    def first_computable(self, tenant: str, device: str) -> int:
        """The number of the first span of a device that can be computed; all after it can be."""
        before = self.erasures.before(tenant, device)
        if before is None:
            return -(1 << 62)
        before_us: int = pa.scalar(before, pa.timestamp("us", tz="UTC")).value
        return -(-(before_us // 1000 + self.margin_ms) // self.span_ms)

    def keep_computable(self, batches: Iterable[pa.RecordBatch], name: str) -> Iterator[pa.RecordBatch]:
        """The rows (columns `tenant`, `device` and `name`: a day, or the number of a span) that can be computed."""
        for batch in batches:
            columns = zip(*(batch[column].to_pylist() for column in ("tenant", "device", name)), strict=True)
            keep = [_number(span) >= self.first_computable(tenant, device) for tenant, device, span in columns]
            yield batch.filter(pa.array(keep, pa.bool_()))

    def count_erased(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """How many rows (columns `tenant`, `device`, `device_time`) lie in spans that keep what was computed."""
        for batch in batches:
            t_ms = [moment // 1000 for moment in pc.cast(batch["device_time"], pa.int64()).to_pylist()]
            columns = zip(batch["tenant"].to_pylist(), batch["device"].to_pylist(), t_ms, strict=True)
            count = sum(one // self.span_ms < self.first_computable(*name) for *name, one in columns)
            yield pa.RecordBatch.from_pydict({"fixes": [count]}, COUNTED)


def _number(span: int | date) -> int:
    return span if isinstance(span, int) else (span - date(1970, 1, 1)).days
