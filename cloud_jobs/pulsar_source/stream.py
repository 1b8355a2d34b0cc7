"""The streaming reader: Spark's driver calls the upper half, its Python workers call `read`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from cloud_jobs.pulsar_source.driver import Driver
from cloud_jobs.pulsar_source.options import PulsarOptions
from cloud_jobs.pulsar_source.planned import PlannedRange
from cloud_jobs.pulsar_source.position import Offset
from cloud_jobs.pulsar_source.reading import isolate_retry, read_range


class PulsarStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """One streaming query's source.

    It is pickled to the workers, so it holds nothing but options; the driver's part is built at its first use.
    """

    def __init__(self, options: PulsarOptions) -> None:
        options.check_stream()
        self._options = options
        self._built: Driver | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_built": None}

    @property
    def _driver(self) -> Driver:
        if self._built is None:
            self._built = Driver(self._options)
        return self._built

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802, D102  # Spark's name and contract, like those below
        return self._driver.initial_offset().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802, D102
        if self._options.max_messages_per_trigger:
            return ReadMaxRows(self._options.max_messages_per_trigger)
        if self._options.max_bytes_per_trigger:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802, D102
        limited = not isinstance(limit, ReadAllAvailable)
        return self._driver.next_offset(Offset.from_json(start), limited=limited).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802, D102
        return self._driver.newest_offset()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802, D102
        self._driver.fix_target()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[PlannedRange]:  # noqa: D102
        return self._driver.plan(Offset.from_json(start), Offset.from_json(end))

    def commit(self, end: Mapping[str, Any]) -> None:  # noqa: D102
        self._driver.commit(Offset.from_json(end))

    def read(self, partition: PlannedRange) -> Iterator[pa.RecordBatch]:  # noqa: D102
        return read_range(self._options, isolate_retry(partition))

    def stop(self) -> None:  # noqa: D102
        if self._built is not None:
            self._built.close()
            self._built = None
