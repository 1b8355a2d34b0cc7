"""Nothing that arrives stops the agent, and what a mapping accepts is what an independent reader reads."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.edge_agent.mapping.parsers import parser_of
from tests.edge_agent.mapping.test_join import CAR
from tests.edge_agent.mapping.test_reading import CSV, PHONES, SIGNAL_K, TWO
from tests.examples import examples
from waybill.record import Batch, Position, Raw, Record, decode, encode

READER = """
[[mappings]]
name = "any"
topic = "any/#"
time = { path = "t.at", unit = "s" }
[mappings.position]
latitude = { path = "p[0]", unit = "rad" }
longitude = { path = "p[1]", unit = "1e-7 deg" }
speed = { path = "v", unit = "kn", absent = [-1] }
accuracy = { path = '"acc.m"', unit = "cm" }
absent = [[0, 0]]
"""
NUMBERS = st.one_of(
    st.integers(-4_000_000_000, 4_000_000_000),
    st.floats(-400, 400, allow_nan=False),
    st.sampled_from([0, -1, math.pi / 2, -math.pi / 2, 90, 180, 1.9e9, 1_799_999_999, -1_800_000_000]),
)
VALUES = st.one_of(
    NUMBERS, NUMBERS.map(str), st.none(), st.booleans(), st.text(max_size=4), st.lists(NUMBERS, max_size=3)
)
TIMES = st.one_of(st.integers(1_577_836_800, 4_102_444_799), st.floats(1_577_836_800, 4_102_444_799))
LATITUDES, LONGITUDES = st.floats(-1.58, 1.58), st.integers(-1_800_000_000, 3_600_000_000)


def mostly(usual: st.SearchStrategy[Any], written: Callable[[Any], Any] = str) -> st.SearchStrategy[Any]:
    """Usual values, sometimes written otherwise, and sometimes any other one."""
    # Not one_of, which would give each kind of VALUES as much weight as all usual ones.
    return st.integers(0, 9).flatmap(lambda draw: (VALUES, usual.map(written))[draw - 8] if draw > 7 else usual)


MESSAGES = st.fixed_dictionaries(
    {
        "t": mostly(st.fixed_dictionaries({"at": mostly(TIMES)}), lambda _: {}),
        "p": mostly(st.tuples(mostly(LATITUDES), mostly(LONGITUDES)), lambda pair: pair[:1]),
    },
    optional={"v": mostly(st.floats(-2, 100)), "acc.m": mostly(st.integers(-5, 5_000))},
)


def number(value: Any) -> float | None:
    """A number as people write it: also as text, never true or false."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def read_by_hand(message: dict[str, Any]) -> dict[str, float] | None:
    """The position of READER's messages, written without the mapping's code; None: there is no whole one."""
    try:
        latitude, longitude, at = number(message["p"][0]), number(message["p"][1]), number(message["t"]["at"])
    except (KeyError, IndexError, TypeError):
        return None
    if latitude is None or longitude is None or at is None or isinstance(message["p"], str):
        return None
    latitude, longitude = math.degrees(latitude), longitude * 1e-7
    longitude -= 360 if 180 < longitude <= 360 else 0
    if not (-90 <= latitude <= 90 and -180 <= longitude <= 180) or latitude == longitude == 0:
        return None
    if not datetime(2020, 1, 1, tzinfo=UTC).timestamp() <= at < datetime(2100, 1, 1, tzinfo=UTC).timestamp():
        return None
    found = {"time": at, "latitude": latitude, "longitude": longitude}
    speed, accuracy = number(message.get("v")), number(message.get("acc.m"))
    if speed is not None and 0 <= speed * 1852 / 3600 <= 100_000:
        found["speed_mps"] = speed * 1852 / 3600
    if message.get("acc.m") is not None:
        if accuracy is None or not 0.001 <= accuracy / 100 <= 10_000_000:
            return None
        found["accuracy_m"] = accuracy / 100
    return found


@settings(max_examples=examples(600))
@given(MESSAGES)
def test_what_a_mapping_accepts_an_independent_reader_reads_alike(message: dict[str, Any]) -> None:
    payload = json.dumps(message).encode()
    (parsed,) = parser_of(READER).parse("any/x", payload)
    wanted = read_by_hand(message)
    if isinstance(parsed.body, Raw):
        # Stricter only where a writer has rounded: a time with an exponent, or a number with odd signs.
        assert wanted is None or isinstance(message["t"]["at"], str) or parsed.malformed == "no-fix", parsed
        assert parsed.body.payload == payload
        return
    assert wanted is not None
    assert isinstance(parsed.body, Position)
    assert parsed.device_time_us is not None
    found = {"time": parsed.device_time_us / 1e6, **parsed.body.model_dump(exclude_none=True)}
    assert found.keys() == wanted.keys()
    assert all(math.isclose(found[name], wanted[name], rel_tol=1e-9, abs_tol=1e-6) for name in wanted), (found, wanted)


PARSERS = {
    topic: parser_of(text)
    for topic, text in (
        ("owntracks/a/b", PHONES),
        ("signalk/x", SIGNAL_K),
        ("tracker", CSV),
        ("gw/1", TWO),
        ("cars/1/latitude", CAR),
        ("any/x", READER),
    )
}
NAMES = (
    "_type",
    "location",
    "tst",
    "lat",
    "lon",
    "vel",
    "odo",
    "updates",
    "values",
    "path",
    "value",
    "kind",
    "t",
    "at",
    "p",
)
SCALARS = st.one_of(
    VALUES,
    st.floats(),
    st.integers(),
    st.sampled_from([*NAMES, "fix", "navigation.position", "2026-11-22T14:51:04Z", 1_795_359_064]),
)
ANY_JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=6),
    max_leaves=20,
)


@settings(max_examples=examples(400))
@given(
    st.sampled_from(sorted(PARSERS)),
    st.one_of(
        st.binary(max_size=200), ANY_JSON.map(lambda value: json.dumps(value).encode()), st.text().map(str.encode)
    ),
)
def test_whatever_arrives_becomes_records_that_travel_and_loses_nothing(topic: str, payload: bytes) -> None:
    parser = PARSERS[topic]
    parsed = parser.accept(parser.parse(topic, payload), topic, 0)
    assert parsed
    records = tuple(Record(seq, one.device_time_us or 0, one.body) for seq, one in enumerate(parsed, 1))
    batch = Batch("d", 1, len(records), records)
    arrived = decode(encode(batch))
    assert decode(encode(arrived)) == arrived
    # of a position the wire keeps the digits that a receiver can measure
    for sent, got in zip(records, arrived.records, strict=True):
        assert got == (replace(sent, body=got.body) if isinstance(sent.body, Position) else sent)
    for one in parsed:
        assert bool(one.malformed) == isinstance(one.body, Raw)
        if one.malformed:
            assert len(one.malformed) <= 64
            assert len(parsed) > 1 or one.payload == payload
