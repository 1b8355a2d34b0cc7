"""The law of `test_month_bytes` on executors: a process of its own, for it has one Spark."""

from __future__ import annotations

import tomllib
from pathlib import Path
from random import Random

import pytest

from cloud_jobs.lake.tables import Lake
from cloud_jobs.spark import start_spark
from cloud_jobs.spark_settings import SparkSettings
from deploy.local import ObjectStore, PortBook, SparkCluster, SparkClusterSettings
from simulator.month import hard_month
from tests.system.billed_month import Centre, billed
from tests.system.lake_in_store import place
from tests.system.test_month_bytes import SEED, bill, billed_in_order

pytestmark = [pytest.mark.system, pytest.mark.own_servers, pytest.mark.timeout(900)]


@pytest.mark.nightly
def test_a_month_on_two_executors_is_billed_to_the_same_bytes(tmp_path: Path) -> None:
    month = hard_month(SEED)
    store = ObjectStore(tmp_path / "s3")
    cluster = SparkCluster(tmp_path, SparkClusterSettings(), PortBook(tmp_path / "ports.json"))
    servers = (store, cluster.master, *cluster.workers)
    try:
        for server in servers:
            server.start()
            server.wait()
        settings = SparkSettings.model_validate(tomllib.loads(cluster.job_settings())["spark"])
        lake = Lake(place(store, "executors"))
        running = start_spark("waybill-tests", settings, lake.location)
        try:
            # this is no session that was there before
            assert running.sparkContext.master == cluster.master.url
            assert len(cluster.workers) == 2
            centre = Centre(lake, running)
            bill(centre, month, Random(8))
            assert billed(centre) == billed_in_order(month, tmp_path / "reference")
        finally:
            running.stop()
    finally:
        for server in reversed(servers):
            server.kill()
