"""What a message becomes: whole records, or a raw one with its reason."""

import json
from typing import Any

import pytest

from edge_agent.mapping.parser import MAX_ROUTES
from tests.edge_agent.mapping.parsers import gives, parser_of
from waybill.record import MAX_ELEMENTS, NO_FAULTS, Raw, raw_reason_group

T = 1_795_359_064
PHONES = """
[[mappings]]
name = "phones"
topic = "owntracks/{user}/{device}"
when = [{ path = "_type", is = "location" }]
time = { path = "tst", unit = "s" }
[mappings.position]
latitude = { path = "lat", unit = "deg" }
longitude = { path = "lon", unit = "deg" }
altitude = { path = "alt", unit = "ft" }
speed = { path = "vel", unit = "km/h", absent = [-1, "N/A"] }
heading = { path = "cog", unit = "deg" }
accuracy = { path = "acc", unit = "m" }
absent = [[0, 0]]
[[mappings.signals]]
path = "Vehicle.TraveledDistance"
value = { path = "odo", unit = "m" }
[[mappings.signals]]
path = "Phone.{user}"
value = { path = "batt", unit = "none" }
[[mappings.events]]
name = { path = "event", absent = [""] }
attributes = { region = { path = "inregions[0]" }, device = { level = "device" } }
"""
FIX = {"_type": "location", "tst": T, "lat": 53.5, "lon": 9.9}
POSITION = {"kind": "position", "latitude": 53.5, "longitude": 9.9, "time": T * 1000}
ODOMETER = {"kind": "signal", "path": "Vehicle.TraveledDistance", "value": 1.5, "time": T * 1000}


def raw(reason: str) -> list[dict[str, Any]]:
    return [{"kind": "raw", "reason": reason}]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [POSITION]),
        (
            {"vel": 36, "alt": 100, "cog": 360.2},
            [POSITION | {"speed_mps": 10, "altitude_m": 30.48, "heading_deg": 0.2 + 1e-14}],
        ),
        ({"lat": "53.5", "lon": " 9.9 ", "acc": "4"}, [POSITION | {"accuracy_m": 4}]),
        ({"lon": 350.1}, [POSITION | {"longitude": -9.9}]),
        ({"vel": -1}, [POSITION]),
        ({"vel": "N/A"}, [POSITION]),
        ({"vel": "fast", "acc": None}, [POSITION]),
        ({"acc": "50 m"}, raw("mapping:accuracy:type")),
        ({"acc": -3}, raw("mapping:accuracy:range")),
        ({"odo": 1500}, [POSITION, ODOMETER]),
        ({"lat": None, "lon": None, "odo": 1500}, [ODOMETER]),
        ({"batt": "high"}, [POSITION, {"kind": "signal", "path": "Phone.anna", "value": "high"}]),
        (
            {"event": "enter", "inregions": ["home"]},
            [POSITION, {"kind": "event", "name": "enter", "attributes": {"region": "home", "device": "d7"}}],
        ),
        ({"event": ""}, [POSITION]),
        ({"lat": None}, raw("no-fix")),
        ({"lat": 0, "lon": 0}, raw("no-fix")),
        ({"lat": 91}, raw("mapping:position:range")),
        ({"lon": True}, raw("mapping:longitude:type")),
        ({"lon": ...}, raw("mapping:longitude:missing")),
        ({"lat": ..., "lon": ...}, raw("mapping:outputs:missing")),
        ({"odo": "far"}, raw("mapping:signal:type")),
        ({"batt": 1 << 54}, raw("mapping:signal:range")),
        ({"batt": {"level": 3}}, raw("mapping:signal:type")),
        ({"event": 3}, raw("mapping:event:type")),
        ({"event": "waybill.canary"}, raw("mapping:event:reserved")),
        ({"tst": ...}, raw("mapping:time:missing")),
        ({"tst": None}, raw("mapping:time:missing")),
        ({"tst": T * 1000}, raw("mapping:time:unit")),
        ({"tst": True}, raw("mapping:time:type")),
        ({"tst": "1.795e9"}, raw("mapping:time:type")),
        ({"tst": -5}, raw("mapping:time:range")),
        ({"tst": T + 0.25}, [POSITION | {"time": T * 1000 + 250}]),
        ({"tst": str(T)}, [POSITION]),
        ({"tst": 315_964_800}, raw("mapping:time:range")),
        ({"_type": "lwt"}, raw("mapping:when:no-match")),
        ({"_type": ...}, raw("mapping:when:no-match")),
    ],
)
def test_a_message_becomes_whole_records_or_stays_raw(changes: dict[str, Any], expected: list[dict[str, Any]]) -> None:
    message = {name: value for name, value in (FIX | changes).items() if value is not ...}
    records = gives(parser_of(PHONES), "owntracks/anna/d7", json.dumps(message))
    assert len(records) == len(expected)
    for record, wanted in zip(records, expected, strict=True):
        for name, value in wanted.items():
            assert record[name] == (pytest.approx(value) if isinstance(value, float) else value), name


def test_what_is_refused_is_counted_with_its_reason_and_the_message_stays_whole() -> None:
    parser = parser_of(PHONES)
    payload = json.dumps(FIX | {"tst": None}).encode()
    parsed = parser.accept(parser.parse("owntracks/anna/d7", payload), "owntracks/anna/d7", 0)
    gives(parser, "owntracks/anna/d7", json.dumps(FIX | {"vel": None}))
    assert parsed[0].body == Raw(topic="owntracks/anna/d7", payload=payload, reason="mapping:time:missing")
    (row,) = parser.rows()
    assert (row["mapping"], row["messages"], row["records"], row["refused"]) == ("phones", 2, 1, 1)
    assert row["last_refusal"] == "mapping:time:missing: the message has no time"
    assert row["sample"].startswith('{"_type": "location"')


def test_each_record_names_the_mapping_and_the_digest_of_its_meaning() -> None:
    def label(text: str) -> str:
        return parser_of(text).parse("owntracks/a/b", json.dumps(FIX).encode())[0].mapping

    example = '[[mappings.examples]]\ntopic = "owntracks/a/b"\npayload = "x"\nrefused = "mapping:format:json"\n'
    assert label(PHONES).startswith("phones@")
    assert label(PHONES + example) == label(PHONES)
    assert label(PHONES.replace('name = "phones"', 'name = "p"')) == label(PHONES).replace("phones@", "p@")
    assert label(PHONES.replace('"acc"', '"accuracy"')) != label(PHONES)


SIGNAL_K = """
[[mappings]]
name = "boat"
topic = "signalk/#"
each = "updates.values"
time = { path = "../timestamp", unit = "iso" }
[mappings.position]
latitude = { path = "value.latitude", unit = "deg" }
longitude = { path = "value.longitude", unit = "deg" }
when = [{ path = "path", is = "navigation.position" }]
[[mappings.signals]]
path = "Vehicle.Speed"
value = { path = "value", unit = "m/s" }
when = [{ path = "path", in = ["navigation.speedOverGround", "navigation.speed"] }]
[[mappings.events]]
name = { path = "/context" }
when = [{ path = "path", is = "notifications.mob" }]
"""


def test_elements_of_nested_arrays_are_judged_alone() -> None:
    def element(path: str, value: Any) -> dict[str, Any]:
        return {"path": path, "value": value}

    values = [
        element("navigation.position", {"latitude": 53.5, "longitude": 9.9}),
        element("navigation.position", {"latitude": 95, "longitude": 9.9}),
        element("navigation.speed", 10),
        element("environment.wind", 3),
        element("notifications.mob", 1),
    ]
    update = {"timestamp": "2026-11-22T14:51:04Z", "values": values}
    delta = {"context": "vessels.self", "updates": [update, {"values": [element("navigation.speed", 3)]}]}
    records = gives(parser_of(SIGNAL_K), "signalk/delta", json.dumps(delta))
    assert [record.get("reason") or record["kind"] for record in records] == [
        *("position", "mapping:position:range", "signal", "event", "mapping:time:missing")
    ]
    assert records[2]["value"] == pytest.approx(36)
    assert records[3]["name"] == "vessels.self"
    assert gives(parser_of(SIGNAL_K), "signalk/delta", "{}") == raw("mapping:each:missing")
    only_wind = {"updates": [{"values": [values[3]]}]}
    assert gives(parser_of(SIGNAL_K), "signalk/delta", json.dumps(only_wind)) == raw("mapping:when:no-match")


def test_the_first_reason_is_that_of_an_array_without_a_readable_element() -> None:
    bad = [FIX | {"tst": None}, FIX | {"lat": "x"}]
    payload = json.dumps(bad).encode()
    (parsed,) = parser_of(PHONES).parse("owntracks/a/b", payload)
    assert (parsed.malformed, parsed.payload) == ("mapping:time:missing", payload)
    mixed = parser_of(PHONES).parse("owntracks/a/b", json.dumps([FIX, *bad]).encode())
    assert [one.malformed for one in mixed] == ["", "mapping:time:missing", "mapping:latitude:type"]
    assert json.loads(mixed[1].payload) == bad[0]


CSV = """
[[mappings]]
name = "lines"
topic = "tracker"
format = "csv"
time = { path = "at", format = "%d.%m.%Y %H:%M:%S", zone = "Europe/Berlin" }
[mappings.csv]
columns = ["at", "lat", "lon", "spd"]
delimiter = ";"
[mappings.position]
latitude = { path = "lat", unit = "1e-7 deg" }
longitude = { path = "lon", unit = "1e-7 deg" }
speed = { path = "spd", unit = "kn" }
"""


def test_lines_of_csv_are_elements_with_times_of_a_zone() -> None:
    lines = [
        "22.11.2026 15:51:04;535000000;99000000;",
        "22.11.2026 15:51:04;1",
        "25.10.2026 02:30:00;535000000;99000000;1",
    ]
    records = gives(parser_of(CSV), "tracker", "\r\n".join(lines))
    assert records[0] == POSITION
    assert [record["reason"] for record in records[1:]] == ["mapping:format:columns", "mapping:time:zone"]


@pytest.mark.parametrize(
    ("time", "value", "expected"),
    [
        ('unit = "ms"', T * 1000, T * 1000),
        ('unit = "us"', T * 1_000_000 + 7, T * 1000 + 0.007),
        ('unit = "ns"', str(T * 1_000_000_000), T * 1000),
        ('unit = "ms"', T, "unit"),
        ('unit = "us"', T * 1000, "unit"),
        ('unit = "s"', 9_000_000_000_000, "range"),
        ('unit = "iso"', "2026-11-22T14:51:04Z", T * 1000),
        ('unit = "iso"', "2026-11-22 15:51:04+01:00", T * 1000),
        ('unit = "iso"', "2026-11-22T14:51:04", "zone"),
        ('unit = "iso"', "yesterday", "format"),
        ('unit = "iso"', "2026" + 200_000 * " " + "x", "format"),
        ('unit = "iso"', T, "type"),
        ('unit = "iso"', "1969-11-22T14:51:04Z", "range"),
        ('unit = "s"', T // 60, "range"),
        ('unit = "us"', 20261122145104, "range"),
        ('unit = "s", absent = [0]', 0, "missing"),
        ('unit = "s", absent = [0], else = "arrival"', 0, None),
        ('unit = "s", else = "arrival"', 1_175_990_400, None),
        ('unit = "iso"', "20261122T1451Z", (T - 4) * 1000),
        ('unit = "iso", zone = "UTC"', "2026-11-22", "format"),
        ('unit = "iso", zone = "UTC"', "2026-11-22T14", "format"),
        ('unit = "iso", zone = "Europe/Helsinki"', "2026-11-22T16:51:04", T * 1000),
        ('unit = "iso", zone = "Europe/Helsinki"', "2026-10-25T03:30:00", "zone"),
        ('unit = "iso", zone = "Europe/Helsinki"', "2026-03-29T03:30:00", "zone"),
        ('unit = "s", else = "arrival"', None, None),
        ('unit = "s", else = "arrival"', "soon", "type"),
    ],
)
def test_a_time_has_the_unit_of_the_settings_or_is_refused(time: str, value: Any, expected: Any) -> None:
    text = PHONES.replace('unit = "s"', time)
    (record, *_) = gives(parser_of(text), "owntracks/a/b", json.dumps(FIX | {"tst": value}))
    assert record["reason"] == f"mapping:time:{expected}" if isinstance(expected, str) else record["time"] == expected


@pytest.mark.parametrize(
    ("unit", "value", "path", "expected"),
    [
        ("mi", 10, "Vehicle.TraveledDistance", 16.09344),
        ("degF", 212, "Vehicle.Exterior.AirTemperature", 100),
        ("K", 273.15, "Vehicle.Exterior.AirTemperature", 0),
        ("ratio", "0.55", "Vehicle.Powertrain.TractionBattery.StateOfCharge.Current", 55),
        ("psi", 30, "Vehicle.Chassis.Axle.Row1.Wheel.Left.Tire.Pressure", 206.84),
        ("kn", 1, "Vehicle.Speed", 1.852),
        ("mV", 12_400, "Vehicle.LowVoltageBattery.CurrentVoltage", 12.4),
    ],
)
def test_a_signal_is_converted_to_the_unit_of_its_path(unit: str, value: Any, path: str, expected: float) -> None:
    text = PHONES.replace("Vehicle.TraveledDistance", path).replace('"odo", unit = "m"', f'"odo", unit = "{unit}"')
    records = gives(parser_of(text), "owntracks/a/b", json.dumps(FIX | {"odo": value}))
    assert records[1]["value"] == pytest.approx(expected, rel=1e-4)


TWO = """
[[mappings]]
name = "fixes"
topic = "gw/{vehicle}"
when = [{ path = "kind", is = "fix" }]
time = { path = "t", unit = "ms" }
[mappings.position]
latitude = { path = "lat", unit = "rad" }
longitude = { path = "lon", unit = "rad" }
[[mappings]]
name = "doors"
topic = "gw/+"
when = [{ path = "kind", is = "door" }]
time = { path = "t", unit = "ms" }
[[mappings.events]]
name = "door"
attributes = { open = { path = "open" } }
"""


def test_two_mappings_share_a_topic_if_their_conditions_exclude_each_other() -> None:
    parser = parser_of(TWO)
    fix, door = {"kind": "fix", "t": T * 1000, "lat": 0.5, "lon": 0.1}, {"kind": "door", "t": T * 1000, "open": True}
    kinds = [record["kind"] for record in gives(parser, "gw/7", json.dumps([door, fix]))]
    assert kinds == ["position", "event"]
    assert gives(parser, "gw/7", '{"kind": "x"}') == raw("mapping:when:no-match")
    assert parser.filters == ("gw/+", "gw/+")


def test_levels_stand_in_the_path_of_a_signal_and_other_brackets_stay() -> None:
    text = PHONES.replace("Phone.{user}", "Phone.{user}.{device}}.{user}")
    records = gives(parser_of(text), "owntracks/{device}/7", json.dumps(FIX | {"batt": 80}))
    assert records[1]["path"] == "Phone.{device}.7}.{device}"


def test_a_level_with_control_characters_is_no_path_of_a_signal() -> None:
    message = json.dumps(FIX | {"batt": 80})
    assert gives(parser_of(PHONES), "owntracks/a\x1b[2J/7", message) == raw("mapping:signal:type")


def test_records_that_repeat_a_long_text_of_the_message_do_not_grow_without_end() -> None:
    text = SIGNAL_K.replace('"/context" }', '"path" }\nattributes = { about = { path = "/big" } }')
    for elements, kinds in ((10, {"event"}), (1_000, {"raw"})):
        values = [{"path": "notifications.mob"}] * elements
        update = {"timestamp": "2026-11-22T14:51:04Z", "values": values}
        records = gives(parser_of(text), "signalk/delta", json.dumps({"big": "x" * 60_000, "updates": [update]}))
        assert {one["kind"] for one in records} == kinds
    assert records == raw("mapping:size:range")


def test_the_limit_of_elements_is_that_of_each_mapping() -> None:
    doors = [{"kind": "door", "t": T * 1000, "open": True}] * MAX_ELEMENTS
    assert len(gives(parser_of(TWO), "gw/7", json.dumps(doors))) == MAX_ELEMENTS
    assert gives(parser_of(TWO), "gw/7", json.dumps([*doors, 1])) == raw("mapping:each:too-many")


def test_the_contract_stays_readable_beside_mappings() -> None:
    native = json.dumps({"time": T * 1000, "latitude": 53.5, "longitude": 9.9})
    parser = parser_of(PHONES.replace("owntracks/{user}/{device}", "vehicle/{user}/{device}"))
    assert gives(parser, "vehicle/position", native) == [POSITION]
    assert gives(parser, "vehicle/gps/position", native) == [POSITION], "no condition of the mapping holds"
    assert gives(parser, "elsewhere", native) == raw("unknown-topic")


def test_topics_without_end_take_no_memory_without_end() -> None:
    parser = parser_of(PHONES)
    for number in range(2 * MAX_ROUTES):
        assert gives(parser, f"owntracks/a/{number}", json.dumps(FIX)) == [POSITION]


def test_a_centre_groups_the_reasons_of_mappings() -> None:
    assert raw_reason_group("mapping:time:unit") == "mapping:time"
    assert raw_reason_group("mapping:invented:word") == "other"
    assert raw_reason_group("mapping:when:no-match") in NO_FAULTS
