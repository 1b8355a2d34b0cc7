"""What a job counts of its runs, and what its health says of them."""

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from cloud_jobs.ingest.micro_batch import MicroBatchWriter
from cloud_jobs.job_settings import MetricsSettings
from cloud_jobs.run_metrics import IngestMetrics, RunMetrics, RunOutcome, served_metrics
from deploy.local.ports import free_port
from tests.cloud_jobs.ingest.centre import NOON_US, at_once, batch, take_in
from tests.new_lakes import new_lake
from waybill.record import Batch, Event, Raw, Record, encode

MAX_RUN_S = 100.0


class Clocked:
    def __init__(self) -> None:
        self.time_s = 1_000.0
        self.metrics = RunMetrics("usage", MAX_RUN_S, clock=lambda: self.time_s, now=lambda: self.time_s)

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, {"command": "usage", **labels})

    def run(self, outcome: RunOutcome, took_s: float = 2.0, **counts: int) -> None:
        try:
            with self.metrics.run() as measured:
                self.time_s += took_s
                if outcome is RunOutcome.FAILED:
                    raise OSError("the disk is full")
                measured.did(counts, work=outcome is RunOutcome.COMPUTED)
        except OSError:
            pass


@given(st.lists(st.sampled_from(RunOutcome), max_size=30))
def test_each_run_is_counted_once_by_how_it_ended(outcomes: list[RunOutcome]) -> None:
    job = Clocked()
    for outcome in outcomes:
        job.run(outcome)
    for outcome in RunOutcome:
        assert job.value("waybill_jobs_runs_total", outcome=outcome) == outcomes.count(outcome)
    assert job.value("waybill_jobs_run_seconds_count") == outcomes.count(RunOutcome.COMPUTED)
    good = [outcome for outcome in outcomes if outcome is not RunOutcome.FAILED]
    assert bool(job.value("waybill_jobs_run_end_timestamp_seconds")) == bool(good)
    trailing = len(outcomes) - max((at + 1 for at, one in enumerate(outcomes) if one in good), default=0)
    assert job.value("waybill_jobs_failed_runs") == trailing
    assert job.metrics.health()["healthy"] == (None if not outcomes else not trailing)


def test_rows_and_what_is_published_add_up_and_what_was_found_is_of_the_last_run() -> None:
    job = Clocked()
    job.run(RunOutcome.COMPUTED, rows=3, published=2, fences_refused=4)
    job.run(RunOutcome.COMPUTED, revisions=2)
    assert job.value("waybill_jobs_rows_total") == 5
    assert job.value("waybill_jobs_published_rows_total") == 2
    assert job.value("waybill_jobs_refused_fences") == 4, "the second run did not look"
    assert job.value("waybill_jobs_run_seconds_sum") == 4


def test_the_health_names_the_last_failure_until_a_run_ends_well() -> None:
    job = Clocked()
    job.run(RunOutcome.FAILED)
    health = job.metrics.health()
    assert (health["last_error"], health["last_outcome"], health["failures_in_a_row"]) == (
        "the disk is full",
        "failed",
        1,
    )
    job.run(RunOutcome.IDLE)
    assert (job.metrics.health()["last_error"], job.metrics.health()["last_outcome"]) == ("", "idle")


def test_the_counts_are_those_of_the_table(tmp_path: Path) -> None:
    lake, metrics = new_lake(tmp_path), IngestMetrics(now=lambda: 5.0)
    writer = MicroBatchWriter(lake, submit=at_once, counted=metrics.on_micro_batch)
    take_in(lake, writer, [batch(1, 2)])
    take_in(lake, writer, [batch(2, 3)], [batch(3, 4)])
    rows = lake.rows("ingest_batches").to_pylist()
    value = metrics.registry.get_sample_value
    assert value("waybill_ingest_messages_total") == sum(row["messages"] for row in rows) == 3
    accepted = value("waybill_ingest_records_total", {"outcome": "accepted"})
    assert accepted == sum(row["accepted"] for row in rows) == lake.open("records").count()
    duplicates = value("waybill_ingest_records_total", {"outcome": "duplicate"})
    assert duplicates == sum(row["duplicates"] for row in rows) == 2
    assert value("waybill_ingest_micro_batch_seconds_count") == len(rows) == 2
    assert metrics.health()["last_micro_batch_at"] == "1970-01-01T00:00:05.000+00:00"
    assert value("waybill_ingest_quarantined_total", {"cause": "malformed"}) == 0


def test_messages_that_agents_could_not_read_are_counted_and_their_devices_named(tmp_path: Path) -> None:
    def said(device: str, *reasons: str) -> bytes:
        """A message for each reason; "": one that could be read."""
        bodies = [Raw(topic="t", payload=b"x", reason=one) if one else Event(name="door") for one in reasons]
        records = tuple(Record(seq, NOON_US + seq, body) for seq, body in enumerate(bodies, 1))
        return encode(Batch(device, 7, len(records), records))

    lake, metrics = new_lake(tmp_path), IngestMetrics()
    writer = MicroBatchWriter(lake, submit=at_once, counted=metrics.on_micro_batch)
    most = [said("d", *["wrong-fields"] * 3, *[""] * 200), said("garage", "no-fix")]
    take_in(lake, writer, [*most, said("mute", "wrong-fields", "no-fix")])
    (row,) = lake.rows("ingest_batches").to_pylist()
    assert (row["unreadable"], row["unreadable_of"]) == (4, "acme/d 3, acme/mute 1")
    assert metrics.registry.get_sample_value("waybill_ingest_unreadable_records_total") == 4


def test_the_health_knows_nothing_before_the_query_runs_and_after_a_failure_until_a_micro_batch() -> None:
    metrics = IngestMetrics()
    counts = "messages accepted duplicates malformed conflicts far_off disbelieved unreadable"
    row = dict.fromkeys(counts.split(), 0)

    def healthy() -> bool | None:
        found: bool | None = metrics.health()["healthy"]
        return found

    assert healthy() is None
    metrics.on_query(runs=True)
    assert healthy() is True
    metrics.on_failure(1)
    assert healthy() is False
    metrics.on_query(runs=True)
    assert healthy() is None
    metrics.on_micro_batch({**row, "seconds": 0.1})
    assert healthy() is True
    assert metrics.registry.get_sample_value("waybill_ingest_query_failures_total") == 1


def fetched(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_metrics_and_health_are_served_while_the_job_runs() -> None:
    port, job = free_port(), RunMetrics("usage", 60)
    with served_metrics(MetricsSettings(usage_port=port), "usage", job.registry, job.health):
        with job.run() as measured:
            measured.did({"rows": 3})
        assert 'waybill_jobs_rows_total{command="usage"} 3.0' in fetched(port, "/metrics")[1]
        code, text = fetched(port, "/health")
        assert (code, json.loads(text)["healthy"]) == (200, True)
    with pytest.raises(urllib.error.URLError):
        fetched(port, "/metrics")


def test_without_a_port_nothing_is_served_and_a_port_that_is_taken_stops_no_job() -> None:
    port, job = free_port(), RunMetrics("usage", 60)
    settings = MetricsSettings(usage_port=port)
    with capture_logs() as lines:
        with served_metrics(MetricsSettings(), "usage", job.registry, job.health):
            pass
        assert lines == []
        with (
            served_metrics(settings, "usage", job.registry, job.health),
            served_metrics(settings, "usage", job.registry, job.health),
        ):
            assert fetched(port, "/health")[0] == 200
    (line,) = lines
    assert (line["log_level"], line["event"], line["address"]) == (
        "warning",
        "metrics are not served",
        f"127.0.0.1:{port}",
    )
