"""A centre's columns say exactly what the records say, and refuse what `decode` refuses."""

import math
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import batches
from tests.telemetry.test_wire import framed
from waybill.record import Batch, Canary, Event, Position, Raw, Record, Signal, WireError, decode, encode
from waybill.record.columns import RecordColumns, decode_columns
from waybill.record.content import pack_records

POSITION_FIELDS = ("latitude", "longitude", "altitude_m", "speed_mps", "heading_deg", "accuracy_m")


def row(columns: RecordColumns, index: int) -> dict[str, Any]:
    fields = (*POSITION_FIELDS, "name", "number", "text", "payload")
    values = {name: getattr(columns, name)[index] for name in fields}
    return {name: None if isinstance(v, float) and math.isnan(v) else v for name, v in values.items()}


def expected(record: Record) -> dict[str, Any]:
    said: dict[str, Any] = dict.fromkeys((*POSITION_FIELDS, "name", "number", "text", "payload"))
    match record.body:
        case Position() as position:
            said |= {name: getattr(position, name) for name in POSITION_FIELDS}
        case Signal(path=path, value=bool() as value):
            said |= {"name": path, "text": "true" if value else "false"}
        case Signal(path=path, value=str() as value):
            said |= {"name": path, "text": value}
        case Signal(path=path, value=value):
            said |= {"name": path, "number": value}
        case Event(name=name, attributes=attributes):
            said |= {"name": name, "text": attributes}
        case Canary(id=identity):
            said |= {"name": identity}
        case Raw(topic=topic, payload=payload, reason=reason):
            said |= {"name": topic, "payload": payload, "text": reason}
    return said


def assert_same(columns: RecordColumns, batch: Batch) -> None:
    """That the columns say of each record exactly what the batch does."""
    assert columns.header == batch.header
    assert columns.seq.tolist() == [record.seq for record in batch.records]
    assert columns.device_time_us.tolist() == [record.device_time_us for record in batch.records]
    assert columns.monotonic_us.tolist() == [record.monotonic_us for record in batch.records]
    assert columns.uncertainty_ms.tolist() == [record.uncertainty_ms for record in batch.records]
    assert columns.boot.tolist() == [record.boot for record in batch.records]
    assert columns.mapping.tolist() == [record.mapping or None for record in batch.records]
    for index, record in enumerate(batch.records):
        assert row(columns, index) == expected(record)


@given(batches())
def test_columns_say_what_the_records_say(batch: Batch) -> None:
    assert_same(decode_columns(encode(batch)), batch)


junk = st.none() | st.integers(-3, 9) | st.binary(max_size=9) | st.text(max_size=3) | st.lists(st.integers(0, 3))


@given(batches().filter(lambda batch: batch.records), st.data())
def test_spoilt_content_is_refused_by_both_or_read_alike_by_both(batch: Batch, data: st.DataObject) -> None:
    content = pack_records(batch.records)
    key = data.draw(st.sampled_from(sorted(content)))
    if isinstance(content[key], list) and data.draw(st.booleans()):
        content[key] = [*content[key]]
        content[key][data.draw(st.integers(0, len(content[key]) - 1))] = data.draw(junk)
    else:
        content[key] = data.draw(junk)
    steps = encode(batch)
    header = msgpack.unpackb(steps[16 : 16 + int.from_bytes(steps[8:12], "big")])
    spoilt = framed(header, msgpack.packb(content))
    try:
        read = decode(spoilt)
    except WireError as error:
        with pytest.raises(type(error)):
            decode_columns(spoilt)
    else:
        assert_same(decode_columns(spoilt), read)
