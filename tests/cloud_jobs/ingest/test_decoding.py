"""What the executors make of messages: headers for the decision, rows for the table."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import msgpack
import pyarrow as pa
from hypothesis import given

from cloud_jobs.ingest.decoding import DECODED, RECORD_COLUMNS, decode_messages, selected_records
from cloud_jobs.ingest.deduplication import MessageRef
from cloud_jobs.lake.schemas import RECORDS
from telemetry import Batch, Canary, IntervalSet, Position, Raw, Record, Tombstone, encode
from tests.strategies import batches
from tests.telemetry.test_wire import framed

MESSAGES = pa.schema(
    [
        ("value", pa.binary()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("publish_time", pa.timestamp("us", tz="UTC")),
        ("topic", pa.string()),
        ("message_id", pa.string()),
        ("malformed", pa.string()),
    ]
)
RECEIVED = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)


def messages(*values: bytes) -> pa.RecordBatch:
    rows: list[dict[str, Any]] = [
        {
            "value": value,
            "properties": [("tenant", "acme"), ("region", "eu")],
            "publish_time": RECEIVED,
            "topic": "t",
            "message_id": str(at),
        }
        for at, value in enumerate(values)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=MESSAGES)


@given(batches())
def test_the_rows_are_the_wanted_records(batch: Batch) -> None:
    names = IntervalSet.of([record.seq for record in batch.records][::2])
    made = list(
        selected_records({MessageRef("t", "0"): names})(decode_messages([messages(encode(batch), encode(batch))]))
    )
    said = ["tenant", "region", "device", "epoch", "seq", "received_at"]
    rows = [row for part in made for row in part.select(said).to_pylist()]
    assert [row["seq"] for row in rows] == list(names)
    assert {row["device"] for row in rows} == {"eu-0001"}
    assert {(row["tenant"], row["region"], row["epoch"], row["received_at"]) for row in rows} == {
        ("acme", "eu", batch.epoch, RECEIVED)
    }


def test_a_position_becomes_a_row_with_nulls_where_nothing_was_said() -> None:
    time_us = 1_767_603_422_000_000
    batch = Batch("d", 9, 2, (Record(2, time_us, Position(latitude=1.5, longitude=-2.5, speed_mps=3)),))
    (part,) = selected_records({MessageRef("t", "0"): IntervalSet([(2, 2)])})(
        decode_messages([messages(encode(batch))])
    )
    assert part.schema == RECORD_COLUMNS
    (row,) = part.to_pylist()
    assert (row["kind"], row["latitude"], row["longitude"], row["speed_mps"]) == ("position", 1.5, -2.5, 3.0)
    assert row["altitude_m"] is row["number"] is row["text"] is row["payload"] is row["name"] is None
    assert row["device_time"] == datetime.fromtimestamp(time_us / 1e6, UTC)
    assert row["device_date"] == date(2026, 1, 5)


def test_a_clock_far_off_has_no_partition_and_is_kept() -> None:
    batch = Batch("d", 9, 2, (Record(1, -5, Canary(id="x")), Record(2, 250_000 * 10**12, Canary(id="y"))))
    (part,) = selected_records({MessageRef("t", "0"): IntervalSet([(1, 2)])})(
        decode_messages([messages(encode(batch))])
    )
    assert part["device_date"].to_pylist() == [None, None]


def test_headers_keep_the_order_and_say_why_a_message_is_malformed() -> None:
    consistent = encode(Batch("d", 9, 4, (Record(2, 0, Canary(id="x")),), (Tombstone(3, 4, "quota"),)))
    (part,) = decode_messages([messages(consistent, b"junk", consistent[:-1])])
    assert part.schema == DECODED
    first, second, third = [row for row in part.to_pylist() if row["seq"] is None]
    assert (first["device"], first["epoch"], first["head"]) == ("d", 9, 4)
    assert (first["bounds"], first["lost"], first["reasons"]) == ([2, 2], [3, 4], ["quota"])
    assert second["malformed"].startswith("not-a-batch: ")
    assert second["payload"] == b"junk"
    assert third["malformed"].startswith("truncated: ")


def test_a_content_that_contradicts_its_consistent_header_is_malformed_before_anything_is_let_in() -> None:
    lying = framed(["d", 9, 4, [1, 3], []], msgpack.packb({"t": "nonsense"}))
    (part,) = decode_messages([messages(lying)])
    (row,) = part.to_pylist()
    assert row["seq"] is None
    assert row["malformed"].startswith("malformed: ")


def test_a_message_that_the_source_calls_malformed_is_so_though_its_value_is_a_batch() -> None:
    consistent = encode(Batch("d", 9, 4, (Record(2, 0, Canary(id="x")),)))
    reasons = ["properties not UTF-8: ff", "publish_time not a time of the years 1970 to 9999: 0 ms", None]
    rows = messages(consistent, consistent, consistent).to_pylist()
    named = [row | {"malformed": reason} for row, reason in zip(rows, reasons, strict=True)]
    named[0]["properties"] = named[1]["publish_time"] = None
    (part,) = decode_messages([pa.RecordBatch.from_pylist(named, schema=MESSAGES)])
    headers = [row for row in part.to_pylist() if row["seq"] is None]
    assert [row["malformed"] for row in headers] == [f"message: {reasons[0]}", f"message: {reasons[1]}", None]
    assert headers[0]["payload"] == consistent
    assert len({row["fingerprint"] for row in headers}) == 3
    assert sum(row["seq"] is not None for row in part.to_pylist()) == 1


def test_a_batch_of_tombstones_only_has_a_header_and_no_rows() -> None:
    (part,) = decode_messages([messages(encode(Batch("d", 9, 4, (), (Tombstone(1, 4, "age"),))))])
    (row,) = part.to_pylist()
    assert (row["seq"], row["lost"], row["malformed"]) == (None, [1, 4], None)


def test_the_rows_are_columns_of_the_records_table() -> None:
    assert set(RECORDS.names) - set(RECORD_COLUMNS.names) == {"ingested_at", "batch_id"}
    assert all(RECORDS.field(name).type == RECORD_COLUMNS.field(name).type for name in RECORD_COLUMNS.names)


def test_what_unpacks_to_much_is_opened_in_several_parts() -> None:
    whole = [Record(seq, 0, Raw(topic="t" * 60_000, payload=bytes(40_000))) for seq in range(1, 81)]
    large = encode(Batch("d", 9, 80, tuple(whole)))
    assert len(large) < 64 << 10
    parts = list(decode_messages([messages(*[large] * 12)]))
    assert len(parts) > 2
    assert sum(part.num_rows for part in parts) == 12 * 81
    assert max(part.nbytes for part in parts) < 64 << 20


def test_tombstones_without_number_are_opened_in_several_parts() -> None:
    lost = tuple(Tombstone(seq, seq, "q") for seq in range(1, 20_000, 2))
    tombstones = encode(Batch("d", 9, 1 << 20, (), lost))
    parts = list(decode_messages([messages(*[tombstones] * 40)]))
    assert sum(part.num_rows for part in parts) == 40
    assert len(parts) > 2
