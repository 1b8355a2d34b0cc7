"""The batch reader: what the topics hold now, without touching any subscription."""

from collections.abc import Iterator, Sequence
from contextlib import closing

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader

from cloud_jobs.pulsar_source.ledgers import TopicState
from cloud_jobs.pulsar_source.options import PulsarOptions
from cloud_jobs.pulsar_source.planning import Survey, check_topics, reader_range
from cloud_jobs.pulsar_source.position import BEGINNING, Position, Range
from cloud_jobs.pulsar_source.reading import PlannedRange, again, read_range


class PulsarBatchReader(DataSourceReader):  # type: ignore[misc]  # pyspark is untyped here
    """One task for each topic partition, through readers, from startingPosition to endingPosition."""

    def __init__(self, options: PulsarOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[PlannedRange]:  # noqa: D102  # Spark's name and contract
        cluster = self._options.all_clusters()[0]
        with closing(Survey(cluster, self._options)) as survey:
            known = survey.known_clusters()
            states = survey.states()
            check_topics(self._options, cluster, states)
            return [
                reader_range(Range(topic, self._start(state), state.last), state, cluster, self._options, known)
                for topic, state in states.items()
                if state.has_more_than(self._start(state))
            ]

    def read(self, partition: PlannedRange | None) -> Iterator[pa.RecordBatch]:  # noqa: D102
        # Spark makes one task of its own when there are no partitions.
        return read_range(self._options, again(partition)) if isinstance(partition, PlannedRange) else iter(())

    def _start(self, state: TopicState) -> Position:
        return state.last if self._options.starting_position == "latest" else BEGINNING
