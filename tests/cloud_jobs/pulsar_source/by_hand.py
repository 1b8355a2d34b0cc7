"""A query without Spark: its batches are planned, read and acknowledged one by one."""

from typing import Any

from cloud_jobs.pulsar_source.driver import Driver
from cloud_jobs.pulsar_source.entries import PlannedRange
from cloud_jobs.pulsar_source.options import PulsarOptions
from cloud_jobs.pulsar_source.position import Offset
from cloud_jobs.pulsar_source.range_reader import read_range
from tests.cloud_jobs.pulsar_source.world import LiveCluster


class QueryByHand:
    def __init__(self, place: LiveCluster, **more: str) -> None:
        self.topic = place.new_topic()
        known = {**place.options, "topics": self.topic, "subscription": "s", "columns": "value,malformed"}
        self._options = PulsarOptions.parse(known | more)
        self._driver = Driver(self._options)
        self._start = self._driver.begin()

    def plan(self) -> tuple[Offset, list[PlannedRange]]:
        end = self._driver.choose_end(self._start, limited=False)
        return end, self._driver.plan(self._start, end)

    def rows(self, tasks: list[PlannedRange]) -> list[dict[str, Any]]:
        batches = (batch for planned in tasks for batch in read_range(self._options, planned))
        return [row for batch in batches for row in batch.to_pylist()]

    def read(self, tasks: list[PlannedRange]) -> list[int]:
        return [int(row["value"]) for row in self.rows(tasks)]

    def done(self, end: Offset) -> None:
        self._driver.commit(end)
        self._start = end

    def close(self) -> None:
        self._driver.close()
