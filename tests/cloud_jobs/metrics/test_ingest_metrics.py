"""What the ingest counts: the rows of `ingest_batches` of a real lake, and the state of its query."""

from __future__ import annotations

from pathlib import Path

from cloud_jobs.ingest.micro_batch import MicroBatchWriter
from cloud_jobs.run_metrics import IngestMetrics
from tests.cloud_jobs.ingest.centre import NOON_US, at_once, batch, new_lake, take_in
from waybill.record import Batch, Event, Raw, Record, encode


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
    assert value("waybill_ingest_micro_batch_end_timestamp_seconds") == 5.0
    assert value("waybill_ingest_quarantined_total", {"cause": "malformed"}) == 0


def test_a_device_of_which_nothing_can_be_read_is_counted_and_named_however_few_its_messages_are(
    tmp_path: Path,
) -> None:
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
    assert (row["unreadable"], row["unreadable_devices"]) == (4, 1)
    assert row["unreadable_of"] == "acme/mute 1 (all), acme/d 3"
    assert metrics.registry.get_sample_value("waybill_ingest_unreadable_devices_total") == 1


def test_the_health_knows_nothing_before_the_query_runs_and_after_a_failure_until_a_micro_batch() -> None:
    metrics = IngestMetrics()
    counts = "messages accepted duplicates malformed conflicts far_off disbelieved unreadable unreadable_devices"
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
