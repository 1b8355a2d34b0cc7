"""What devices, phones and gateways send that is not quite the contract: what of it is read, and what is not.

Each row: a topic, a payload, and what becomes of it: the body, or the reason for which the message is raw.
"""

import json
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent.intake.messages import parse_message
from tests.examples import examples
from waybill.record import MAX_ELEMENTS, Body, Canary, Event, Position, Raw, Signal
from waybill.record import VEHICLE_SIGNAL as SIGNAL

T = 1_795_359_064_626
FIX = Position(latitude=53.55, longitude=9.99)


class Variant(NamedTuple):
    """`expected`: bodies, or the reason. `time_us`: of the first record. `left_out`: unknown and unusable names."""

    name: str
    topic: str
    payload: bytes
    expected: list[Body] | str
    time_us: int | None = T * 1000
    left_out: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name


def fix(more: str = "", *, time: str = str(T), latitude: str = "53.55", longitude: str = "9.99") -> bytes:
    return f'{{"time":{time},"latitude":{latitude},"longitude":{longitude}{more}}}'.encode()


def read(name: str, payload: bytes, body: Body = FIX, *left_out: str, time_us: int = T * 1000) -> Variant:
    return Variant(name, "vehicle/position", payload, [body], time_us, left_out)


def refused(name: str, payload: bytes, reason: str, topic: str = "vehicle/position") -> Variant:
    return Variant(name, topic, payload, reason)


def with_(**members: float) -> Position:
    return Position(latitude=53.55, longitude=9.99, **members)


POSITIONS = [
    read("as in the contract", fix()),
    read("all members", fix(',"speed_mps":3,"accuracy_m":4.5'), with_(speed_mps=3, accuracy_m=4.5)),
    # Members that the contract does not have.
    read("satellites", fix(',"satellites":9'), FIX, "satellites"),
    read("unknown null", fix(',"fix":null'), FIX, "fix"),
    read("unknown object", fix(',"extra":{"a":[1]}'), FIX, "extra"),
    read("unknown with an escape", fix(',"driver":"M\\u00fcller"'), FIX, "driver"),
    read("two unknown", fix(',"hdop":0.9,"battery":81'), FIX, "battery", "hdop"),
    # Optional members that say that they say nothing.
    read("altitude null", fix(',"altitude_m":null'), FIX, "altitude_m"),
    read("altitude NaN", fix(',"altitude_m":NaN'), FIX, "altitude_m"),
    read("speed infinite", fix(',"speed_mps":-Infinity'), FIX, "speed_mps"),
    read("speed -1", fix(',"speed_mps":-1,"heading_deg":-1'), FIX, "heading_deg", "speed_mps"),
    read("speed of a text that is none", fix(',"speed_mps":"12 km/h"'), FIX, "speed_mps"),
    read("speed empty", fix(',"speed_mps":""'), FIX, "speed_mps"),
    read("speed true", fix(',"speed_mps":true'), FIX, "speed_mps"),
    read("speed beyond all", fix(',"speed_mps":1e9'), FIX, "speed_mps"),
    read("speed in an array", fix(',"speed_mps":[1]'), FIX, "speed_mps"),
    read("heading a rounded circle", fix(',"heading_deg":360.25'), with_(heading_deg=0.25)),
    read("heading 360", fix(',"heading_deg":360'), with_(heading_deg=360)),
    read("heading 511", fix(',"heading_deg":511'), FIX, "heading_deg"),
    read("accuracy -1", fix(',"accuracy_m":-1'), FIX, "accuracy_m"),
    read("accuracy 0", fix(',"accuracy_m":0'), FIX, "accuracy_m"),
    read("accuracy -0.0", fix(',"accuracy_m":-0.0'), FIX, "accuracy_m"),
    read("accuracy beyond all", fix(',"accuracy_m":4294967295'), FIX, "accuracy_m"),
    # Forms of the text.
    read("byte order mark", b"\xef\xbb\xbf" + fix()),
    read("trailing NUL", fix() + b"\0"),
    read("a buffer of NULs", fix() + bytes(40)),
    read("line end", fix() + b"\r\n"),
    read("line end and NUL", fix() + b"\r\n\0"),
    read("pretty printed", json.dumps(json.loads(fix()), indent=4).encode()),
    # Numbers.
    read("coordinates as text", fix(latitude='"53.55"', longitude='"9.99"')),
    read("coordinates as text with spaces", fix(latitude='" 53.55"', longitude='"+9.99 "')),
    read("all as text", fix(',"speed_mps":"3.5"', time=f'"{T}"', latitude='"53.55"'), with_(speed_mps=3.5)),
    read("exponents", fix(latitude="5.355e1", longitude='"9.99E0"')),
    read("whole degrees", fix(latitude="53", longitude="9"), Position(latitude=53, longitude=9)),
    read("counted eastward", fix(longitude="180.5"), Position(latitude=53.55, longitude=-179.5)),
    read("counted eastward to 360", fix(longitude="350"), Position(latitude=53.55, longitude=-10)),
    refused("longitude 400", fix(longitude="400"), "impossible-position"),
    refused("latitude 91, longitude 181", fix(latitude="91", longitude="181"), "impossible-position"),
    refused("1e-7 degrees", fix(latitude="535500000", longitude="99900000"), "impossible-position"),
    refused("decimal comma", fix(latitude='"53,55"', longitude='"9,99"'), "wrong-fields"),
    refused("digits with underscores", fix(latitude='"5_3.55"'), "wrong-fields"),
    refused("text NaN", fix(latitude='"nan"'), "wrong-fields"),
    refused("degrees and minutes", fix(latitude='"53°33\'"'), "wrong-fields"),
    refused("latitude true", fix(latitude="true"), "wrong-fields"),
    refused("latitude null", fix(latitude="null", longitude="null"), "no-fix"),
    refused("latitude NaN", fix(latitude="NaN", longitude="NaN"), "no-fix"),
    read("null island", fix(latitude="0", longitude="0.0"), Position(latitude=0, longitude=0)),
    refused("other names", f'{{"time":{T},"lat":53.55,"lon":9.99}}'.encode(), "wrong-fields"),
    # Arrays.
    Variant("an array of one", "vehicle/position", b"[" + fix() + b"]", [FIX]),
    Variant(
        "an array of three",
        "vehicle/position",
        b"[" + b",".join([fix(), fix(',"satellites":1', latitude="53.56"), fix(latitude='"53.57"')]) + b"]",
        [FIX, Position(latitude=53.56, longitude=9.99), Position(latitude=53.57, longitude=9.99)],
    ),
    Variant(
        "an array with one that has no fix",
        "vehicle/position",
        b"[" + b",".join([fix(), fix(latitude="null"), fix()]) + b"]",
        [FIX, Raw(topic="vehicle/position", payload=fix(latitude="null"), reason="no-fix"), FIX],
    ),
    refused("an empty array", b"[]", "no-object"),
    refused("an array of numbers", b"[53.55,9.99]", "no-object"),
    refused("an array of arrays", b"[[53.55,9.99]]", "no-object"),
    refused("an array without a readable element", b"[" + fix(latitude="null") + b",{}]", "no-fix"),
    refused("a longer array", b"[" + b",".join([b"{}"] * (MAX_ELEMENTS + 1)) + b"]", "no-object"),
    # Time.
    read("milliseconds as a float", fix(time=f"{T}.0")),
    read("milliseconds with a fraction", fix(time=f"{T}.25"), time_us=T * 1000 + 250),
    read("milliseconds with an exponent", fix(time="1.795359064626e+12")),
    read("milliseconds as text", fix(time=f'"{T}"')),
    refused("milliseconds as text that was rounded", fix(time='"1.79536e+12"'), "time-not-read"),
    read("ISO +0100", fix(time='"2026-11-22T15:51:04.626+0100"')),
    read("ISO +01", fix(time='"2026-11-22T15:51:04.626+01"')),
    read("ISO with a space", fix(time='"2026-11-22 14:51:04.626 +00:00"')),
    read("ISO UTC", fix(time='"2026-11-22 14:51:04.626 UTC"')),
    read("ISO small letters", fix(time='"2026-11-22t14:51:04.626z"')),
    read("ISO basic", fix(time='"20261122T145104.626Z"')),
    read("ISO comma", fix(time='"2026-11-22T14:51:04,626Z"')),
    read("ISO nanoseconds", fix(time='"2026-11-22T14:51:04.626000999Z"')),
    read("leap second", fix(time='"2016-12-31T23:59:60Z"'), time_us=1_483_228_800_000_000),
    read("a clock that nobody set", fix(time="5000"), time_us=5_000_000),
    read("a clock of 1980", fix(time="315964800000"), time_us=315_964_800_000_000),
    refused("ISO without zone", fix(time='"2026-11-22T15:51:04.626"'), "time-without-offset"),
    refused("a date", fix(time='"2026-11-22"'), "time-without-offset"),
    refused("seconds", fix(time="1795359064"), "time-in-seconds"),
    refused("seconds with a fraction", fix(time="1795359064.626"), "time-in-seconds"),
    refused("seconds as text", fix(time='"1795359064"'), "time-in-seconds"),
    refused("microseconds", fix(time="1795359064626000"), "time-in-microseconds"),
    refused("nanoseconds", fix(time="1795359064626000000"), "time-in-nanoseconds"),
    refused("digits of a date", fix(time="20261122145104"), "impossible-time"),
    refused("a time before 1970", fix(time="-5"), "impossible-time"),
    refused("time null", fix(time="null"), "no-time"),
    refused("time true", fix(time="true"), "time-not-read"),
    refused("time empty", fix(time='""'), "time-not-read"),
    refused("time in words", fix(time='"Sun Nov 22 2026"'), "time-not-read"),
    # No JSON, or none that is safe.
    refused("UTF-16", fix().decode().encode("utf-16"), "no-json"),
    refused("single quotes", fix().replace(b'"', b"'"), "no-json"),
    refused("cut off", fix()[:-1], "no-json"),
    refused("NMEA", b"$GPRMC,145104.626,A,5333.0,N,00959.4,E,0.0,0.0,221126,,*1C", "no-json"),
    refused("OsmAnd", b"id=7&lat=53.55&lon=9.99&timestamp=1795359064", "no-json"),
    refused("a name twice", fix(',"latitude":53.56'), "duplicate-name"),
    refused("bytes", b"\xff\x00", "no-json"),
    refused("brackets", b"[" * 100_000, "too-many-values"),
    refused("5,000 digits", fix(time="1" + "0" * 5_000), "number-out-of-range"),
    refused("a number beyond all", fix(time="1e400"), "number-out-of-range"),
    refused("no time", b'{"latitude":1,"longitude":2}', "no-time"),
]


def of(topic: str, name: str, payload: str, *bodies: Body, left_out: tuple[str, ...] = ()) -> Variant:
    return Variant(name, topic, payload.encode(), [*bodies], T * 1000, left_out)


OTHERS = [
    Variant("a sensor of its own", "vehicle/7/position", fix(), [FIX]),
    Variant("a sensor with a name", "vehicle/roof-gps/position", fix(), [FIX]),
    refused("two levels", fix(), "unknown-topic", "vehicle/a/b/position"),
    refused("another beginning", fix(), "unknown-topic", "car/7/position"),
    refused("another end", fix(), "unknown-topic", "vehicle/7/place"),
    refused("a plural", fix(), "misspelt-topic", "vehicle/7/positions"),
    refused("a capital", fix(), "misspelt-topic", "vehicle/Position"),
    of(
        "vehicle/signal",
        "whole",
        f'{{"time":{T},"path":"Vehicle.Speed","value":12}}',
        Signal(path="Vehicle.Speed", value=12.0),
    ),
    of("vehicle/2/signal", "a text", f'{{"time":{T},"path":"a","value":"12"}}', Signal(path="a", value="12")),
    of(
        "vehicle/signal",
        "list",
        f'{{"time":{T},"path":"a","value":["P0420", 1]}}',
        Signal(path="a", value='["P0420",1]'),
    ),
    of(
        "vehicle/signal",
        "unit",
        f'{{"time":{T},"path":"a","value":1,"unit":"V"}}',
        Signal(path="a", value=1.0),
        left_out=("unit",),
    ),
    refused("signal null", f'{{"time":{T},"path":"a","value":null}}'.encode(), "no-value", "vehicle/signal"),
    refused("signal NaN", f'{{"time":{T},"path":"a","value":NaN}}'.encode(), "no-value", "vehicle/signal"),
    refused("signal object", f'{{"time":{T},"path":"a","value":{{}}}}'.encode(), "wrong-fields", "vehicle/signal"),
    of("vehicle/event", "bare", f'{{"time":{T},"name":"door"}}', Event(name="door")),
    of("vehicle/a/event", "more", f'{{"time":{T},"name":"door","id":4}}', Event(name="door"), left_out=("id",)),
    of(
        "vehicle/event",
        "no attributes",
        f'{{"time":{T},"name":"door","attributes":null}}',
        Event(name="door"),
        left_out=("attributes",),
    ),
    of(
        "vehicle/event",
        "NaN inside",
        f'{{"time":{T},"name":"d","attributes":{{"t":NaN}}}}',
        Event(name="d", attributes='{"t":null}'),
    ),
    of(
        "vehicle/event",
        "attributes as text",
        f'{{"time":{T},"name":"d","attributes":"x"}}',
        Event(name="d"),
        left_out=("attributes",),
    ),
    of("vehicle/canary", "canary", f'{{"time":{T},"id":"c1"}}', Canary(id="c1")),
    of("vehicle/signal", "true", f'{{"time":{T},"path":"a","value":true}}', Signal(path="a", value=True)),
    refused("no path", f'{{"time":{T},"path":"","value":1}}'.encode(), "wrong-fields", "vehicle/signal"),
    refused("no value", f'{{"time":{T},"path":"a"}}'.encode(), "wrong-fields", "vehicle/signal"),
    refused("2**53+1", f'{{"time":{T},"path":"a","value":9007199254740993}}'.encode(), "number-too-large", SIGNAL),
    refused("half a pair", rf'{{"time":{T},"path":"a","value":"\ud83d"}}'.encode(), "lone-surrogate", SIGNAL),
    refused("deep", b'{"name":"n","attributes":' + b'{"a":' * 40 + b"1" + b"}" * 41, "too-deep", "vehicle/event"),
    refused("a path of files", b"x", "unknown-topic", "vehicle/../../etc/passwd"),
    refused("seconds", b'{"time":1795359064,"name":"d"}', "time-in-seconds", "vehicle/event"),
    refused("our event", f'{{"time":{T},"name":"waybill.too_large"}}'.encode(), "reserved-name", "vehicle/event"),
    refused("our signal", f'{{"time":{T},"path":"waybill.x","value":1}}'.encode(), "reserved-name", "vehicle/7/signal"),
    of("vehicle/event", "nearly ours", f'{{"time":{T},"name":"waybills"}}', Event(name="waybills")),
]
VARIANTS = [*POSITIONS, *OTHERS]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_a_variant_is_read_for_what_it_says_or_carried_as_it_came_with_the_reason(variant: Variant) -> None:
    records = parse_message(variant.topic, variant.payload)
    if isinstance(variant.expected, str):
        (record,) = records
        assert record.malformed == variant.expected
        carried = Raw(topic=variant.topic, payload=variant.payload, reason=variant.expected)
        assert (record.body, record.device_time_us) == (carried, None)
        return
    assert [record.body for record in records] == variant.expected
    assert records[0].device_time_us == variant.time_us
    assert tuple(sorted(records[0].left_out)) == variant.left_out


json_values = st.none() | st.booleans() | st.integers(-1000, 1000) | st.floats(-1e9, 1e9) | st.text(max_size=9)


@settings(max_examples=examples(200))
@given(
    st.dictionaries(
        st.text(min_size=1, max_size=9).filter(lambda it: it not in {"time", *Position.model_fields}),
        json_values,
        max_size=4,
    ),
    st.dictionaries(st.sampled_from(["altitude_m", "speed_mps", "heading_deg", "accuracy_m"]), json_values),
)
def test_whatever_else_a_fix_says_its_place_and_time_are_read(unknown, optional):
    payload = json.dumps({**unknown, "time": T, "latitude": 53.55, "longitude": 9.99, **optional}).encode()
    (record,) = parse_message("vehicle/position", payload)
    assert (record.malformed, record.device_time_us) == ("", T * 1000)
    assert isinstance(record.body, Position)
    assert (record.body.latitude, record.body.longitude) == (53.55, 9.99)
    given_values = {name for name in optional if getattr(record.body, name) is not None}
    assert given_values | set(record.left_out) == optional.keys() | unknown.keys()
    assert record.body.accuracy_m is None or record.body.accuracy_m > 0


@settings(max_examples=examples(100))
@given(st.lists(st.sampled_from([one for one in POSITIONS if one.payload.startswith(b"{")]), min_size=1, max_size=9))
def test_an_array_says_what_its_elements_say_one_by_one(variants):
    try:
        elements = [json.loads(one.payload, parse_constant=lambda _: None) for one in variants]
    except ValueError:
        return
    alone = [parse_message("vehicle/position", json.dumps(one).encode())[0] for one in elements]
    together = parse_message("vehicle/position", json.dumps(elements).encode())
    if all(one.malformed for one in alone):
        assert [one.malformed for one in together] == [alone[0].malformed]
    else:
        assert [(one.body.__class__, one.device_time_us, one.malformed) for one in together] == [
            (one.body.__class__, one.device_time_us, one.malformed) for one in alone
        ]
