"""The batch reader: what the topics hold now, without touching any subscription."""

from collections.abc import Iterator, Sequence
from contextlib import closing

import pyarrow as pa
import structlog
from pyspark.sql.datasource import DataSourceReader

from cloud_jobs.pulsar_source.errors import AccessRefused, SourceClusterUnreachable
from cloud_jobs.pulsar_source.options import PulsarOptions, SourceCluster
from cloud_jobs.pulsar_source.partition_state import PartitionState
from cloud_jobs.pulsar_source.planned import PlannedRange
from cloud_jobs.pulsar_source.planning import ClusterSurvey, batch_range, check_topics
from cloud_jobs.pulsar_source.position import BEGINNING, LedgerPosition, PartitionRange
from cloud_jobs.pulsar_source.reading import isolate_retry, read_range

_log = structlog.get_logger(__name__)


class PulsarBatchReader(DataSourceReader):  # type: ignore[misc]  # pyspark is untyped here
    """One task for each topic partition, through readers, from startingPosition to endingPosition.

    Of several clusters the first that answers is read.
    """

    def __init__(self, options: PulsarOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[PlannedRange]:  # noqa: D102  # Spark's name and contract
        *preferred, last = self._options.all_clusters()
        for cluster in preferred:
            try:
                return self._partitions_on(cluster)
            except (SourceClusterUnreachable, AccessRefused) as error:
                _log.warning("cluster_skipped", cluster=cluster.name, error=str(error))
        return self._partitions_on(last)

    def _partitions_on(self, cluster: SourceCluster) -> list[PlannedRange]:
        with closing(ClusterSurvey(cluster, self._options)) as survey:
            known = survey.known_clusters()
            states = survey.states()
            check_topics(self._options, cluster, states)
            return [
                batch_range(PartitionRange(topic, self._start(state), state.last), state, cluster, self._options, known)
                for topic, state in states.items()
                if self._has_messages(state)
            ]

    def read(self, partition: PlannedRange | None) -> Iterator[pa.RecordBatch]:  # noqa: D102
        # Spark makes one task of its own when there are no partitions.
        return read_range(self._options, isolate_retry(partition)) if isinstance(partition, PlannedRange) else iter(())

    def _has_messages(self, state: PartitionState) -> bool:
        start = self._start(state)
        # What was compacted can outlive the ledgers.
        return state.has_entries_after(start) or (self._options.read_compacted and start == BEGINNING)

    def _start(self, state: PartitionState) -> LedgerPosition:
        return state.last if self._options.starting_position == "latest" else BEGINNING
