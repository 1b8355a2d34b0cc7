"""What the executors make of messages: rows for the table, and what they say of each device stream."""

from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.ingest.decoding import RECORD_COLUMNS, DecodedMessages, SensibleTime, decode_messages
from cloud_jobs.lake.coverage import Coverage, DeviceStream
from simulator.truth import content_bytes, made_canary, made_event, made_position, made_raw, made_signal
from simulator.truth.journal import Made
from tests.strategies import batches
from waybill.identity.sealing import Sealer, Unsealer
from waybill.record import Batch, Canary, Event, IntervalSet, Position, Raw, Record, Signal, Tombstone, encode

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


Message = bytes | tuple[str | None, bytes]
"""A value that the tenant acme sent, or another, or nobody who is named."""


def messages(*sent: Message) -> pa.RecordBatch:
    by_tenant = [one if isinstance(one, tuple) else ("acme", one) for one in sent]
    rows: list[dict[str, Any]] = [
        {
            "value": value,
            "properties": [("tenant", tenant)] * (tenant is not None) + [("region", "eu")],
            "publish_time": RECEIVED,
            "topic": "t",
            "message_id": str(at),
        }
        for at, (tenant, value) in enumerate(by_tenant)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=MESSAGES)


def decoded(*sent: Message) -> DecodedMessages:
    (found,) = decode_messages([messages(*sent)])
    return found


def rows_of(found: DecodedMessages) -> list[dict[str, Any]]:
    assert found.rows is not None
    rows: list[dict[str, Any]] = found.rows.cast(RECORD_COLUMNS).to_pylist()
    return rows


@given(batches())
def test_the_rows_are_all_records_as_often_as_they_came(batch: Batch) -> None:
    found = decoded(encode(batch), encode(batch))
    seqs = [record.seq for record in batch.records]
    said, records = found.streams[DeviceStream("acme", "eu-0001", batch.epoch)]
    assert (said.received, said.head, records) == (IntervalSet.of(seqs), batch.head, 2 * len(seqs))
    stated_us = min(batch.stated_us, round(RECEIVED.timestamp() * 1_000_000))
    stated = (stated_us, batch.head if stated_us else 0)
    assert said == Coverage() | Coverage(said.received, batch.tombstones, batch.head, *stated)
    assert found.messages == 2
    if seqs:
        rows = rows_of(found)
        assert sorted(row["seq"] for row in rows) == sorted(seqs * 2)
        assert {(row["tenant"], row["region"], row["device"], row["epoch"], row["received_at"]) for row in rows} == {
            ("acme", "eu", "eu-0001", batch.epoch, RECEIVED)
        }
    else:
        assert found.rows is None


def test_a_position_becomes_a_row_with_nulls_where_nothing_was_said() -> None:
    time_us = 1_767_603_422_000_000
    batch = Batch("d", 9, 2, (Record(2, time_us, Position(latitude=1.5, longitude=-2.5, speed_mps=3)),))
    (row,) = rows_of(decoded(encode(batch)))
    assert (row["kind"], row["latitude"], row["longitude"], row["speed_mps"]) == ("position", 1.5, -2.5, 3.0)
    assert row["altitude_m"] is row["number"] is row["text"] is row["payload"] is row["name"] is None
    assert row["device_time"] == datetime.fromtimestamp(time_us / 1e6, UTC)
    assert row["device_date"] == date(2026, 1, 5)


def test_a_record_of_a_mapping_names_it_and_another_has_null() -> None:
    records = (
        Record(1, 1_767_603_422_000_000, Canary(id="a"), mapping="buses@0a1b2c3d"),
        Record(2, 1_767_603_422_000_000, Canary(id="b")),
    )
    native = tuple(replace(record, mapping="") for record in records)
    rows = rows_of(decoded(encode(Batch("d", 9, 2, records)), encode(Batch("e", 9, 2, native))))
    assert [row["mapping"] for row in rows] == ["buses@0a1b2c3d", None, None, None]


def test_a_device_time_far_off_has_no_day_and_is_kept() -> None:
    received_us, day_us = int(RECEIVED.timestamp()) * 1_000_000, 86_400_000_000
    last, first = received_us + day_us, received_us - 400 * day_us
    times = [-5, 0, first - 1, first, received_us, last, last + 1, 250_000 * 10**12]
    batch = Batch("d", 9, 9, tuple(Record(seq, time, Canary(id="x")) for seq, time in enumerate(times, start=1)))
    rows = rows_of(decoded(encode(batch)))
    assert [row["device_date"] is None for row in rows] == [True, True, True, False, False, False, True, True]
    assert (rows[3]["device_date"], rows[5]["device_date"]) == (date(2024, 12, 1), date(2026, 1, 6))


@given(st.lists(st.tuples(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(0, 253_402_300_799_999_999)), min_size=1))
def test_whatever_is_called_old_a_day_is_one_that_a_calendar_has(times: list[tuple[int, int]]) -> None:
    device_us, received_us = (np.array(column, np.int64) for column in zip(*times, strict=True))
    days = SensibleTime(max_age_days=36_500, max_ahead_days=365).days(device_us, received_us).to_pylist()
    assert all(day is None or date(1970, 1, 1) <= day < date(2100, 1, 1) for day in days)


@pytest.mark.parametrize("tenant", [None, "", "a b", "../up", "a'", "x" * 64])
def test_a_message_without_a_tenant_or_with_one_that_nobody_can_be_is_malformed(tenant: str | None) -> None:
    value = encode(Batch("d", 9, 1, (Record(1, 0, Canary(id="x")),)))
    found = decoded((tenant, value))
    (row,) = found.malformed
    assert row["malformed"].startswith(
        f"tenant: the message's property tenant is {tenant!r:.50}".replace("None", "none")
    )
    assert (row["payload"], found.rows, found.streams) == (value, None, {})


def test_a_message_that_is_malformed_says_why_and_keeps_its_bytes() -> None:
    consistent = encode(Batch("d", 9, 4, (Record(2, 0, Canary(id="x")),), (Tombstone(3, 4, "quota"),)))
    found = decoded(consistent, b"junk", consistent[:-1])
    assert found.streams == {
        DeviceStream("acme", "d", 9): (Coverage(IntervalSet([(2, 2)]), (Tombstone(3, 4, "quota"),), 4), 1)
    }
    second, third = found.malformed
    assert second["malformed"].startswith("not-a-batch: ")
    assert (second["payload"], second["topic"], second["message_id"]) == (b"junk", "t", "1")
    assert third["malformed"].startswith("truncated: ")


def test_a_topic_of_one_tenant_has_no_message_of_another() -> None:
    sent = messages(encode(Batch("d", 9, 4, (Record(2, 0, Canary(id="x")),))))
    (topic,) = sent["topic"].to_pylist()
    (found,) = decode_messages([sent], tenants={topic: "kaze"})
    assert [row["malformed"] for row in found.malformed] == ["tenant: a message of 'acme' on the topic of 'kaze'"]
    assert (found.rows, found.streams) == (None, {})
    for own in ({topic: "acme"}, {topic: None}, {"another": "kaze"}):
        (found,) = decode_messages([sent], tenants=own)
        assert len(rows_of(found)) == 1


def test_what_unpacks_to_much_is_opened_in_several_parts() -> None:
    whole = [Record(seq, 0, Raw(topic="t" * 60_000, payload=bytes(40_000))) for seq in range(1, 81)]
    large = encode(Batch("d", 9, 80, tuple(whole)))
    assert len(large) < 64 << 10
    parts = list(decode_messages([messages(*[large] * 20)]))
    assert len(parts) > 1
    assert sum(len(rows_of(part)) for part in parts) == 20 * 80
    assert max(part.rows.nbytes for part in parts if part.rows is not None) < 128 << 20


def sealed_messages(tenant: str, *batches: bytes) -> pa.RecordBatch:
    sealer = Sealer(TENANTS_KEY.public_key(), X25519PrivateKey.generate(), tenant, "eu")
    return messages(*((tenant, sealer.seal(batch)) for batch in batches))


TENANTS_KEY = X25519PrivateKey.from_private_bytes(bytes(range(32)))


def test_a_sealed_batch_makes_the_same_rows_as_the_batch() -> None:
    batches = [encode(Batch("d", 9, seq, (Record(seq, 0, Canary(id="x")),))) for seq in (1, 2)]
    (plain,) = decode_messages([messages(*(("acme", batch) for batch in batches))])
    (opened,) = decode_messages([sealed_messages("acme", *batches)], unsealer=Unsealer([TENANTS_KEY]))
    assert rows_of(opened) == rows_of(plain)
    assert opened.streams == plain.streams


def test_what_does_not_open_is_malformed_and_kept_sealed_and_nothing_else_waits_for_it() -> None:
    batch = encode(Batch("d", 9, 1, (Record(1, 0, Canary(id="x")),)))
    sealed = sealed_messages("other", batch)
    relabelled = messages(("acme", sealed["value"][0].as_py()))
    (found,) = decode_messages([relabelled, messages(("acme", batch))], unsealer=Unsealer([TENANTS_KEY]))
    (row,) = found.malformed
    assert row["malformed"] == "sealed: it was altered, or does not belong to tenant 'acme' in region 'eu'"
    assert row["payload"] == sealed["value"][0].as_py()
    assert len(rows_of(found)) == 1
    (without_key,) = decode_messages([sealed])
    assert without_key.malformed[0]["malformed"].startswith("sealed: it is sealed for the key ")


def made(record: Record) -> Made:
    time_us = record.device_time_us
    match record.body:
        case Position() as at:
            return made_position(
                time_us,
                at.latitude,
                at.longitude,
                altitude_m=at.altitude_m,
                speed_mps=at.speed_mps,
                heading_deg=at.heading_deg,
                accuracy_m=at.accuracy_m,
            )
        case Signal(path=path, value=value):
            return made_signal(time_us, path, value)
        case Event(name=name, attributes=attributes):
            return made_event(time_us, name, attributes)
        case Canary(id=name):
            return made_canary(time_us, name)
        case Raw(topic=topic, payload=payload):
            return made_raw(topic, payload)
    raise AssertionError(record)


@given(batches())
def test_a_record_says_as_much_as_the_truth_says(batch: Batch) -> None:
    found = decoded(encode(batch))
    expected = [content_bytes(made(record)) for record in batch.records]
    assert [row["content_bytes"] for row in rows_of(found)] == expected if expected else found.rows is None
