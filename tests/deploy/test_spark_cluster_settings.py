"""Jobs that run at once on the local Spark cluster each get an executor."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from cloud_jobs.job_settings import SparkSettings
from deploy.local import PortBook, SparkClusterSettings
from deploy.local.spark_cluster import SparkCluster


@pytest.mark.parametrize(("workers", "cores", "jobs"), [(2, 1, 1), (2, 1, 2), (2, 4, 2), (5, 1, 2), (3, 2, 3)])
def test_jobs_at_once_share_the_workers(tmp_path: Path, workers: int, cores: int, jobs: int) -> None:
    size = SparkClusterSettings(workers=workers, worker_cores=cores)
    cluster = SparkCluster(tmp_path, size, PortBook(tmp_path / "ports.json"))
    job = SparkSettings.model_validate(tomllib.loads(cluster.job_settings(jobs))["spark"])
    assert job.executor_cores is not None
    assert job.max_cores is not None
    # each one can start an executor, and all of them find room
    assert job.executor_cores <= job.max_cores <= workers * cores // jobs
    assert job.max_cores > workers * cores // jobs - cores
