"""The metrics of the centre are what `cloud-jobs status` says, of a real lake; what is unknown is not made up."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloud_jobs.status.centre_metrics import FACTS, CentreCollector
from cloud_jobs.status.facts import CentreStatus, problems
from deploy.local.ports import free_port
from tests.cloud_jobs.ingest.centre import batch, new_ingest, new_lake, take_in
from tests.cloud_jobs.pulsar_source.addresses import FakeAdmin, address
from tests.cloud_jobs.status.test_command import status
from tests.cloud_jobs.status.test_topic_lag import says
from tests.cloud_jobs.status.watched import LIMITS, looked, note_maintenance
from tests.waiting import wait_until


@pytest.fixture
def hq() -> Iterator[FakeAdmin]:
    with address() as one:
        one.says = says([0])
        yield one


def shown(found: CentreStatus, *wrong: str) -> dict[tuple[str, ...], float]:
    """Each sample by its name and the values of its labels."""
    collector = CentreCollector(60)
    collector.looked(found, wrong)
    return {
        (sample.name, *sample.labels.values()): sample.value
        for metric in collector.collect()
        for sample in metric.samples
    }


def test_the_metrics_of_a_real_lake_are_its_facts(tmp_path: Path) -> None:
    lake = new_lake(tmp_path)
    take_in(lake, new_ingest(lake), [batch(1, 2)])
    take_in(lake, new_ingest(lake), [batch(4, 5)])
    note_maintenance(lake)
    found = looked(lake)
    samples = shown(found, *problems(found, LIMITS))
    assert samples[("waybill_centre_table_rows", "records")] == 4
    assert samples[("waybill_centre_table_files", "records")] == 2
    assert samples[("waybill_centre_ingest_commits",)] == 2
    assert samples[("waybill_centre_lag_commits", "usage")] == 2
    assert samples[("waybill_centre_lag_records", "usage")] == 4
    assert samples[("waybill_centre_lag_seconds", "usage")] == found.age_s(found.derived[0].waiting_since)
    assert samples[("waybill_centre_table_computed", "usage")] == 0
    assert samples[("waybill_centre_missing_records",)] == 1
    assert samples[("waybill_centre_open_streams",)] == 1
    assert samples[("waybill_centre_maintenance_errors",)] == 0
    assert samples[("waybill_centre_problems",)] == len(problems(found, LIMITS))
    assert {name for name, *_ in samples} - {*FACTS} == {
        "waybill_centre_healthy",
        "waybill_centre_problems",
        "waybill_centre_look_timestamp_seconds",
        "waybill_centre_looks_failed_total",
    }


def test_a_look_that_failed_leaves_nothing_of_the_lake_and_an_old_one_is_not_healthy(tmp_path: Path) -> None:
    time_s = 0.0
    collector = CentreCollector(60, clock=lambda: time_s)
    registry = collector.registry()
    value = registry.get_sample_value
    assert (value("waybill_centre_healthy"), collector.health()["healthy"]) == (None, None)
    collector.looked(looked(new_lake(tmp_path)), ())
    assert (value("waybill_centre_healthy"), value("waybill_centre_streams")) == (1, 0)
    time_s = 61.0
    assert (value("waybill_centre_healthy"), value("waybill_centre_problems")) == (0, 1)
    assert collector.health()["problems"] == ["the centre was last looked at 61 s ago"]
    collector.failed("the object store does not answer")
    assert (value("waybill_centre_healthy"), value("waybill_centre_streams")) == (0, None)
    assert value("waybill_centre_looks_failed_total") == 1


def test_the_command_serves_until_a_signal(tmp_path: Path, hq: FakeAdmin) -> None:
    lake, port = new_lake(tmp_path / "lake"), free_port()
    take_in(lake, new_ingest(lake), [batch(1, 2)])
    note_maintenance(lake)
    status(tmp_path, hq, more=f"[metrics]\nstatus_port = {port}\n")
    command = [sys.executable, "-m", "cloud_jobs", "status", "-c", str(tmp_path / "cloud.toml"), "--serve"]
    with subprocess.Popen(command) as process:
        try:
            wait_until(lambda: b"waybill_centre_healthy 1.0" in metrics(port), timeout_s=60)
            text = metrics(port).decode()
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()
    assert 'waybill_centre_table_rows{table="records"} 2.0' in text


def metrics(port: int) -> bytes:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            found: bytes = answer.read()
            return found
    except OSError:
        return b""
