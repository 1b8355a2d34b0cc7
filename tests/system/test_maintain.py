"""`cloud-jobs maintain` as a process of its own, run after run, beside an ingest that goes on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cloud_jobs.ingest.job import start_ingest
from cloud_jobs.lake.coverage import DeviceStream
from deploy.local import LocalStack
from tests.cloud_jobs.pulsar_source.world import eventually
from tests.system.test_ingest import EPOCH, IngestCentre, batch
from tests.waiting import PATIENCE
from waybill.record import IntervalSet

STREAM = DeviceStream("acme", "eu-0001", EPOCH)
pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.timeout(300)]


@pytest.fixture
def centre(stack: LocalStack, spark: SparkSession, tmp_path: Path) -> Iterator[IngestCentre]:
    made = IngestCentre(stack, spark, tmp_path)
    yield made
    made.client.close()


def settings_file(centre: IngestCentre, folder: Path) -> Path:
    cluster = centre.settings.clusters[0]
    path = folder / "cloud.toml"
    path.write_text(
        f'lake = "{centre.settings.lake}"\ncheckpoints = "{centre.settings.checkpoints}"\n'
        f'[[clusters]]\nname = "hq"\nservice_url = "{cluster.service_url}"\nadmin_url = "{cluster.admin_url}"\n'
        f"[access]\n{centre.settings.access.as_toml()}"
        "[maintenance]\nremoved_files_kept_hours = 1\n",
        encoding="utf-8",
    )
    return path


def has_records(centre: IngestCentre, last: int) -> bool:
    return centre.names() == [*range(1, last + 1)]


def test_maintenance_beside_a_running_ingest_keeps_each_record_once_and_few_files(
    centre: IngestCentre, tmp_path: Path
) -> None:
    query = start_ingest(centre.spark, centre.settings, available_now=False)
    command = [sys.executable, "-m", "cloud_jobs", "maintain", "--every", "1", "--json"]
    maintain = subprocess.Popen(
        [*command, "-c", str(settings_file(centre, tmp_path))], stdout=subprocess.PIPE, text=True
    )
    try:
        for seq in range(1, 13):
            centre.send(batch(seq), batch(seq))
            eventually("the record is there", partial(has_records, centre, seq), timeout_s=60)
        merges = 0
        assert maintain.stdout is not None
        while not merges:
            merges = json.loads(maintain.stdout.readline())["tables"][0]["merges"]
        centre.send(batch(13))
        eventually("the ingest goes on", partial(has_records, centre, 13), timeout_s=60)
        assert query.query.isActive
    finally:
        maintain.send_signal(signal.SIGTERM)
        assert maintain.wait(60 * PATIENCE) == 0
        query.query.stop()
    assert len(centre.settings.tables.open("records").file_uris()) < 13
    assert centre.settings.tables.coverage()[STREAM].received == IntervalSet([(1, 13)])
