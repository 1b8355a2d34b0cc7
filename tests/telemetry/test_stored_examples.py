"""Batches as devices wrote them, kept as bytes: this wire version stays readable, others are refused."""

from pathlib import Path

import pytest

from waybill.record import (
    Batch,
    Canary,
    Event,
    Position,
    Raw,
    Record,
    Signal,
    Tombstone,
    UnknownVersion,
    decode,
    encode,
    read_header,
    validate,
)
from waybill.record.columns import decode_columns

EXAMPLES = Path(__file__).parent / "examples"
NOON_US = 1_767_614_400_000_000

EVERY_KIND = Batch(
    device="eu-0001",
    epoch=58_827_327_388_858_007,
    head=20,
    records=(
        Record(3, NOON_US, Position(latitude=53.5530418, longitude=9.9877018, speed_mps=19.444, accuracy_m=4.221)),
        Record(4, NOON_US + 1_000_000, Signal(path="Vehicle.TraveledDistance", value=1234.5), 17, "boot-a"),
        Record(
            5, NOON_US + 1_000_001, Signal(path="Vehicle.Cabin.Door.Row1.DriverSide.IsOpen", value=True), 18, "boot-a"
        ),
        Record(6, NOON_US + 1_500_000, Signal(path="Vehicle.VehicleIdentification.VIN", value="WAYB1LL"), 19, "boot-a"),
        Record(9, NOON_US + 2_000_000, Event(name="trip_end", attributes='{"driver":"7"}'), 20, "boot-b", 250),
        Record(10, NOON_US + 3_000_000, Canary(id="canary-1"), 21, "boot-b"),
        Record(
            11,
            NOON_US + 4_000_000,
            Raw(topic="vehicle/unknown", payload=b"\x00\xff raw", reason="unknown-topic"),
            22,
            "boot-b",
        ),
    ),
    tombstones=(Tombstone(1, 2, "quota"), Tombstone(7, 8, "age")),
    stated_us=NOON_US + 5_000_000,
)
ONE_MINUTE = Batch(
    device="us-0007",
    epoch=1 << 62,
    head=60,
    records=tuple(
        Record(at, NOON_US + at * 1_000_000, Position(latitude=39.7 + at / 10_000, longitude=-105 + at / 5_000))
        for at in range(1, 61)
    ),
)
MAPPED = Batch(
    device="eu-0001",
    epoch=58_827_327_388_858_007,
    head=3,
    records=(
        Record(1, NOON_US, Canary(id="own")),
        Record(2, NOON_US, Canary(id="mapped"), mapping="buses@0a1b2c3d"),
        Record(3, NOON_US, Canary(id="held"), mapping="torn@89abcdef+held"),
    ),
)
BURIED = Batch("eu-0001", 7, 12, (), (Tombstone(1, 12, "store-damaged"),))
HEARTBEAT = Batch("eu-0001", 7, 12, stated_us=NOON_US)


@pytest.mark.parametrize(
    ("name", "batch"),
    [
        ("v2-every-kind", EVERY_KIND),
        ("v2-heartbeat", HEARTBEAT),
        ("v2-mapped", MAPPED),
        ("v2-one-minute", ONE_MINUTE),
        ("v2-tombstones-only", BURIED),
    ],
)
def test_a_stored_batch_is_still_understood(name: str, batch: Batch) -> None:
    data = bytes.fromhex((EXAMPLES / f"{name}.hex").read_text(encoding="ascii"))
    rounded = decode(data)
    assert rounded.header == read_header(data) == batch.header
    assert [record.seq for record in rounded.records] == decode_columns(data).seq.tolist()
    for read, written in zip(rounded.records, batch.records, strict=True):
        if isinstance(written.body, Position):
            assert isinstance(read.body, Position)
            assert read.body.latitude == pytest.approx(written.body.latitude, abs=5e-8)
            assert read.body.longitude == pytest.approx(written.body.longitude, abs=5e-8)
            assert (read.seq, read.device_time_us) == (written.seq, written.device_time_us)
        else:
            assert read == written


def test_a_batch_of_the_version_before_is_refused_by_every_reader() -> None:
    data = bytes.fromhex((EXAMPLES / "v1-one-minute.hex").read_text(encoding="ascii"))
    for reader in (read_header, validate, decode, decode_columns):
        with pytest.raises(UnknownVersion, match="version 1; this code reads version 2"):
            reader(data)


def test_what_is_written_today_is_what_was_stored() -> None:
    # zlib's output may differ between versions: of a heartbeat nothing is compressed
    assert encode(HEARTBEAT).hex() == (EXAMPLES / "v2-heartbeat.hex").read_text(encoding="ascii").strip()


def test_every_stored_example_is_in_a_test() -> None:
    assert sorted(path.stem for path in EXAMPLES.glob("*.hex")) == [
        "v1-one-minute",
        "v2-every-kind",
        "v2-heartbeat",
        "v2-mapped",
        "v2-one-minute",
        "v2-tombstones-only",
    ]
