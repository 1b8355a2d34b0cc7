"""Bytes from outside cost little before they are refused or read; what was read, everything behind can hold."""

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import msgpack
import pytest
from pydantic import ValidationError

from tests.fuzz.bounds import MAX_BYTES, check_bounds
from tests.fuzz.worst import PARSERS
from tests.telemetry.test_wire import framed
from waybill.record import (
    Batch,
    Canary,
    Event,
    Malformed,
    Position,
    Raw,
    Record,
    Signal,
    TelemetryError,
    TooLarge,
    WireError,
    decode,
    encode,
    validate,
)
from waybill.record.columns import decode_columns
from waybill.record.content import pack_records

READERS = (validate, decode, decode_columns)
HEADER = ["d", 1, 9, 0, [1, 1], []]


def quiet(parser: Callable[[bytes], object], data: bytes) -> None:
    with contextlib.suppress(TelemetryError):
        parser(data)


@pytest.mark.parametrize(
    ("parser", "data"),
    [pytest.param(parser, data, id=f"{kind}: {name}") for kind, parser, inputs in PARSERS for name, data in inputs()],
)
def test_the_worst_64_kilobytes_are_judged_in_bounded_time_and_memory(
    parser: Callable[[bytes], object], data: bytes
) -> None:
    assert len(data) <= MAX_BYTES
    check_bounds(partial(quiet, parser), data)


def content(**parts: Any) -> dict[str, Any]:
    records = [Record(seq, 5, Signal(path="a", value=1.5)) for seq in (1, 2)]
    return pack_records(records) | parts


def with_mapping(**parts: Any) -> dict[str, Any]:
    return pack_records([Record(seq, 5, Signal(path="a", value=1.5), mapping="m@1") for seq in (1, 2)]) | parts


@pytest.mark.parametrize(
    "spoilt",
    [
        content(t=[(1 << 64) - 1, 0, b""]),
        content(t=[253_402_300_800_000_000, 0, b""]),
        content(m=[(1 << 63) - 1, 1, b"\1"]),
        content(m=[-1, 0, b""]),
        content(u=[1 << 31, 0, b""]),
        content(k=[6, 0, b""]),
        content(k=[2, 1, b"\1"]),
        content(b=[{"a": 0}, [0, 0, b""]]),
        content(b=[["a"], [1, 0, b""]]),
        content(b=[["a"], [-1, 0, b""]]),
        content(b=[[], [0, 0, b""]]),
        content(s=[{"a": 0}, [0, 0, b""], [0, 0, b""], [0, [1, 0, b""]], []]),
        content(s=[["a"], [0, 0, b""], [0, 0, b""], [-1, b"\0" * 12 + b"\xf0\xf0\x7f\x7f"], []]),
        content(s=[["a"], [0, 0, b""], [0, 0, b""], [0, [1 << 53, 0, b""]], []]),
        content(s=[["a"], [0, 0, b""], [1, 0, b""], [0, [0, 0, b""]], {"x": 1, "y": 2}]),
        content(s=[["a"], [0, 0, b""], [1, 0, b""], [0, [0, 0, b""]], [b"x", "y"]]),
        content(s=[["a" * 257], [0, 0, b""], [0, 0, b""], [0, [1, 0, b""]], []]),
        content(s=[[""], [0, 0, b""], [0, 0, b""], [0, [1, 0, b""]], []]),
        content(new=1),
        content(a=[["m"], [0, 0, b""]]),
        with_mapping(a=[["m" * 97], [0, 0, b""]]),
        with_mapping(a=[["m\n"], [0, 0, b""]]),
        with_mapping(a=[["\u00e4"], [0, 0, b""]]),
        with_mapping(a=[["m"], [1, 0, b""]]),
        with_mapping(a=[[""], [0, 0, b""]]),
        with_mapping(a=[["m"]]),
        {key: value for key, value in content().items() if key != "u"},
        dict(reversed(content().items())),
    ],
    ids=range(28),
)
def test_values_that_the_centre_cannot_hold_are_refused_by_every_reader(spoilt: dict[str, Any]) -> None:
    frame = framed(HEADER, msgpack.packb(spoilt))
    for reader in READERS:
        with pytest.raises(Malformed):
            reader(frame)


def test_positions_out_of_range_are_refused_by_every_reader() -> None:
    whole = pack_records([Record(1, 0, Position(latitude=1, longitude=2))])
    good = framed(["d", 1, 1, 0, [1, 0], []], msgpack.packb(whole))
    for reader in READERS:
        reader(good)
    for place, value in ((0, 900_000_001), (1, -1_800_000_001), (2, 10**9 + 1), (3, -1), (4, 36_001), (5, -1)):
        section = list(whole["p"])
        section[place] = [value, 0, b""] if place < 2 else [None, [value, 0, b""]]
        frame = framed(["d", 1, 1, 0, [1, 0], []], msgpack.packb(whole | {"p": section}))
        for reader in READERS:
            with pytest.raises(Malformed, match="outside"):
                reader(frame)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Signal(path="a", value="\ud83d"),
        lambda: Signal(path="\ud83d", value=1.0),
        lambda: Signal(path="a", value=float("inf")),
        lambda: Signal(path="a", value=float("nan")),
        lambda: Signal(path="a", value=10**400),
        lambda: Signal(path="a", value="x" * ((1 << 20) + 1)),
        lambda: Event(name="a", attributes="\ud83d"),
        lambda: Event(name="a", attributes="x" * ((1 << 20) + 1)),
        lambda: Canary(id="\ud83d"),
        lambda: Raw(topic="\ud83d", payload=b""),
        lambda: Position(latitude=1, longitude=2, speed_mps=-1),
    ],
    ids=range(11),
)
def test_a_body_that_could_not_be_written_cannot_be_made(make: Callable[[], object]) -> None:
    with pytest.raises(ValidationError):
        make()


@pytest.mark.parametrize(
    "record",
    [
        Record(1, 1 << 62, Canary(id="a")),
        Record(1, 0, Canary(id="a"), -1),
        Record(1, 0, Canary(id="a"), 1 << 63),
        Record(1, 0, Canary(id="a"), 0, "x" * 257),
        Record(1, 0, Canary(id="a"), 0, "\ud83d"),
        Record(1, 0, Canary(id="a"), 0, "", 1 << 31),
        Record(1, 0, Canary(id="a"), mapping="x" * 97),
        Record(1, 0, Canary(id="a"), mapping="\x1b[2J"),
        Record(1, 0, Canary(id="a"), mapping="buses@\u202e"),
        Record(1, 0, Canary.model_construct(id="\ud83d")),
        Record(1, 0, Signal.model_construct(path="a", value=float("inf"))),
        Record(1, 0.5, Canary(id="a")),  # type: ignore[arg-type]
    ],
    ids=range(12),
)
def test_what_every_reader_refuses_is_never_written(record: Record) -> None:
    with pytest.raises(WireError):
        encode(Batch("d", 1, 1, (record,)))


def test_a_batch_that_would_unpack_to_too_much_is_never_written() -> None:
    records = tuple(Record(seq, 0, Raw(topic="t", payload=bytes(1 << 20))) for seq in range(1, 9))
    with pytest.raises(TooLarge, match="content of"):
        encode(Batch("d", 1, 8, records))
    assert decode(encode(Batch("d", 1, 8, records[:7]))).records == records[:7]


def test_a_long_topic_of_many_records_is_never_written_nor_read() -> None:
    raw = Raw(topic="t" * 60_000, payload=b"")
    records = tuple(Record(seq, 0, raw) for seq in range(1, 201))
    with pytest.raises(TooLarge, match="row by row"):
        encode(Batch("d", 1, 200, records))
    content = pack_records([Record(record.seq, 0, Raw(topic="t", payload=b"")) for record in records])
    content["r"][0] = [raw.topic]
    frame = framed(["d", 1, 200, 0, [1, 199], []], msgpack.packb(content))
    for reader in READERS:
        with pytest.raises(TooLarge, match="12000000 characters"):
            reader(frame)
    assert decode(encode(Batch("d", 1, 100, records[:100]))).records == records[:100]
