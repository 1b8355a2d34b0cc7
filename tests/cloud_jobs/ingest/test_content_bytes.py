"""How much a record says depends on its content alone, and is what an independent account says of it."""

from __future__ import annotations

from hypothesis import given

from simulator.truth import content_bytes, made_canary, made_event, made_position, made_raw, made_signal
from simulator.truth.journal import Made
from tests.cloud_jobs.ingest.test_decoding import decoded, rows_of
from tests.strategies import batches
from waybill.record import Batch, Canary, Event, Position, Raw, Record, Signal, encode


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
