"""A query that fails is started again, so many times in a row, and never beside another writer."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloud_jobs.config import CloudSettings
from cloud_jobs.errors import CloudError, Fenced, StoreUnavailable
from cloud_jobs.ingest.job import run_query
from cloud_jobs.run_metrics import IngestMetrics

CLUSTER = {"name": "hq", "service_url": "pulsar://hq:6650", "admin_url": "http://hq:8080"}


class Queries:
    """Queries that end as the script says: None in order, an error with how many micro-batches were done before."""

    def __init__(self, *script: tuple[Exception | None, int], fenced: Fenced | None = None) -> None:
        self._script = iter(script)
        self._fenced = fenced
        self.started = self.stopped = 0

    def start(self) -> Any:
        self.started += 1
        failure, completed = next(self._script)
        query = SimpleNamespace(isActive=False, exception=lambda: failure, stop=self._stop)
        micro_batch = SimpleNamespace(completed=completed, fenced=self._fenced)
        return SimpleNamespace(query=query, micro_batch=micro_batch, records_version=0)

    def _stop(self) -> None:
        self.stopped += 1


def settings(tmp_path: Path, restarts: int) -> CloudSettings:
    document = {"lake": tmp_path, "checkpoints": tmp_path, "clusters": [CLUSTER]}
    return CloudSettings.model_validate(document | {"ingest": {"restarts": restarts, "restart_wait_s": 1e-6}})


GONE = OSError("the cluster is gone")


def test_a_micro_batch_that_was_completed_begins_the_count_of_failures_anew(tmp_path: Path) -> None:
    queries = Queries((GONE, 0), (GONE, 0), (GONE, 1), (GONE, 0), (None, 0))
    run_query(queries.start, settings(tmp_path, 2), threading.Event())
    assert (queries.started, queries.stopped) == (5, 5)


def test_more_failures_in_a_row_than_allowed_end_it_with_the_last_one(tmp_path: Path) -> None:
    queries = Queries(*[(GONE, 0)] * 3)
    with pytest.raises(CloudError, match="3 times in a row: the cluster is gone") as failed:
        run_query(queries.start, settings(tmp_path, 2), threading.Event())
    assert failed.value.__cause__ is GONE


def test_a_store_that_does_not_answer_is_asked_again_and_named_when_it_stays_away(tmp_path: Path) -> None:
    lost = StoreUnavailable("http://store:9000", "Connection refused")
    queries = Queries((None, 1))
    absent = iter([lost, lost])

    def start() -> Any:
        for error in absent:
            raise error
        return queries.start()

    run_query(start, settings(tmp_path, 2), threading.Event())
    assert queries.started == 1
    absent = iter([lost] * 3)
    with pytest.raises(StoreUnavailable, match="http://store:9000 does not answer: Connection refused"):
        run_query(start, settings(tmp_path, 2), threading.Event())


def test_each_failure_is_counted_and_the_query_is_up_only_while_it_runs(tmp_path: Path) -> None:
    metrics = IngestMetrics()
    up = list[float | None]()

    def value(name: str) -> float | None:
        return metrics.registry.get_sample_value(name)

    queries = Queries((GONE, 0), (GONE, 1), (None, 0))

    def start() -> Any:
        up.append(value("waybill_ingest_query_up"))
        return queries.start()

    run_query(start, settings(tmp_path, 2), threading.Event(), metrics)
    assert (up, value("waybill_ingest_query_up")) == ([0, 0, 0], 0)
    assert value("waybill_ingest_query_failures_total") == 2
