"""The format `pulsar` for Spark 4.2: the classes that Spark calls in its driver and Python workers."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa
import structlog
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from cloud_jobs.pulsar_source.admin import ClusterSurvey, check_topics
from cloud_jobs.pulsar_source.driver import Driver
from cloud_jobs.pulsar_source.entries import PlannedRange, batch_range
from cloud_jobs.pulsar_source.messages import spark_schema
from cloud_jobs.pulsar_source.options import AccessRefused, PulsarOptions, SourceCluster, SourceClusterUnreachable
from cloud_jobs.pulsar_source.position import BEGINNING, Offset, PartitionRange, PartitionState
from cloud_jobs.pulsar_source.range_reader import isolate_retry, read_range


class PulsarStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """One streaming query's source.

    Spark pickles it to the workers, so it holds only options; the driver's part is created at its first use.
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

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name and contract, like those below
        return self._driver.begin().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.max_messages_per_trigger:
            return ReadMaxRows(self._options.max_messages_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        limited = not isinstance(limit, ReadAllAvailable)
        return self._driver.choose_end(Offset.from_json(start), limited=limited).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return self._driver.newest_offset()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._driver.fix_target()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[PlannedRange]:
        return self._driver.plan(Offset.from_json(start), Offset.from_json(end))

    def commit(self, end: Mapping[str, Any]) -> None:
        self._driver.commit(Offset.from_json(end))

    def read(self, partition: PlannedRange) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, isolate_retry(partition))

    def stop(self) -> None:
        if self._built is not None:
            self._built.close()
            self._built = None


_log = structlog.get_logger(__name__)


class PulsarBatchReader(DataSourceReader):  # type: ignore[misc]  # pyspark is untyped here
    """One task per topic partition, through readers.

    Reads the first cluster that answers.
    """

    def __init__(self, options: PulsarOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[PlannedRange]:  # Spark's name and contract
        *preferred, last = self._options.clusters
        for cluster in preferred:
            try:
                return self._partitions_on(cluster)
            except (SourceClusterUnreachable, AccessRefused) as error:
                _log.warning("the cluster is skipped", cluster=cluster.name, error=str(error))
        return self._partitions_on(last)

    def _partitions_on(self, cluster: SourceCluster) -> list[PlannedRange]:
        with closing(ClusterSurvey(cluster, self._options)) as survey:
            known = survey.known_clusters()
            states = survey.states()
            check_topics(self._options, cluster, states)
            return [
                batch_range(PartitionRange(topic, BEGINNING, state.last), state, cluster, self._options, known)
                for topic, state in states.items()
                if self._has_messages(state)
            ]

    def read(self, partition: PlannedRange | None) -> Iterator[pa.RecordBatch]:
        # Spark makes one task of its own when there are no partitions.
        return read_range(self._options, isolate_retry(partition)) if isinstance(partition, PlannedRange) else iter(())

    def _has_messages(self, state: PartitionState) -> bool:
        # What was compacted can outlive the ledgers.
        return self._options.read_compacted or state.has_entries_after(BEGINNING)


class PulsarDataSource(DataSource):  # type: ignore[misc]  # pyspark is untyped here
    """Reads Pulsar topics into Spark, as a stream through a durable subscription or as a batch through readers.

    Stream::

        from cloud_jobs.pulsar_source import PulsarDataSource

        spark.dataSource.register(PulsarDataSource)
        messages = (
            spark.readStream.format("pulsar")
            .option("clusters", "hq=pulsar://127.0.0.1:6650|http://127.0.0.1:8080")
            .option("topics", "persistent://fleet/telemetry-eu/batches,persistent://fleet/telemetry-us/batches")
            .option("subscription", "ingest")
            .option("maxMessagesPerTrigger", "20000")
            .load()
        )

    Batch: the same options with `spark.read`; `subscription` is not needed; `readCompacted` gives the
    newest value of each key.

    Columns: `value binary, key string, properties map<string,string>, publish_time timestamp, event_time timestamp,
    topic string, message_id string, cluster string, malformed string`.

    The subscription belongs to one query. Its position moves when Spark reports a batch as done; executors
    acknowledge nothing. Delivery is at least once, and exactly once into a sink that knows the batch id.
    `PYSPARK_PYTHON` must be the interpreter that has this package. Every option is in docs/pulsar-source.md.
    """

    @classmethod
    def name(cls) -> str:
        return "pulsar"

    def schema(self) -> str:
        """The wanted columns as Spark's DDL. Raises OptionError."""
        return spark_schema(PulsarOptions.parse(self.options).columns)

    def reader(self, schema: StructType) -> PulsarBatchReader:  # noqa: ARG002  # the columns are ours
        """Raises OptionError."""
        return PulsarBatchReader(PulsarOptions.parse(self.options))

    def streamReader(self, schema: StructType) -> PulsarStreamReader:  # noqa: N802, ARG002  # Spark's name
        """Raises OptionError."""
        return PulsarStreamReader(PulsarOptions.parse(self.options))
