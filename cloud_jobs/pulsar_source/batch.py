"""The batch reader: what the topics hold now, without touching any subscription."""

from collections.abc import Iterator, Sequence
from contextlib import closing

import pyarrow as pa
import structlog
from pyspark.sql.datasource import DataSourceReader

from cloud_jobs.pulsar_source.errors import AccessRefused, ClusterUnreachable
from cloud_jobs.pulsar_source.ledgers import TopicState
from cloud_jobs.pulsar_source.options import Cluster, PulsarOptions
from cloud_jobs.pulsar_source.planned import PlannedRange
from cloud_jobs.pulsar_source.planning import Survey, check_topics, reader_range
from cloud_jobs.pulsar_source.position import BEGINNING, Position, Range
from cloud_jobs.pulsar_source.reading import again, read_range

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
            except (ClusterUnreachable, AccessRefused) as error:
                _log.warning("cluster_passed_over", cluster=cluster.name, error=str(error))
        return self._partitions_on(last)

    def _partitions_on(self, cluster: Cluster) -> list[PlannedRange]:
        with closing(Survey(cluster, self._options)) as survey:
            known = survey.known_clusters()
            states = survey.states()
            check_topics(self._options, cluster, states)
            return [
                reader_range(Range(topic, self._start(state), state.last), state, cluster, self._options, known)
                for topic, state in states.items()
                if self._has_news(state)
            ]

    def read(self, partition: PlannedRange | None) -> Iterator[pa.RecordBatch]:  # noqa: D102
        # Spark makes one task of its own when there are no partitions.
        return read_range(self._options, again(partition)) if isinstance(partition, PlannedRange) else iter(())

    def _has_news(self, state: TopicState) -> bool:
        start = self._start(state)
        # What was compacted can outlive the ledgers.
        return state.has_more_than(start) or (self._options.read_compacted and start == BEGINNING)

    def _start(self, state: TopicState) -> Position:
        return state.last if self._options.starting_position == "latest" else BEGINNING
