"""Frames of a CAN bus: a DBC file gives names, values and units; mistakes in paths and units are errors at load."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.intake.messages import MessageParser
from edge_agent.mapping.can_frames import MAX_DBC_BYTES, CanDatabase, unit_word
from tests.edge_agent.mapping.parsers import gives, parser_of, settings_of
from waybill.record import MAX_MESSAGE_VALUES
from waybill.settings import SettingsError

DBC = """VERSION ""
NS_ :
BS_:
BU_: Gateway
BO_ 68 Wheels: 8 Gateway
 SG_ Speed : 0|16@1+ (0.01,0) [0|300] "kmh" Gateway
 SG_ Odometer : 16|32@1+ (0.1,0) [0|400000000] "km" Gateway
 SG_ Gear : 48|8@1+ (1,0) [0|7] "" Gateway
BO_ 2566845438 Place: 8 Gateway
 SG_ Latitude : 0|32@1+ (1e-07,-210) [-210|211.1008122] "deg" Gateway
 SG_ Longitude : 32|32@1+ (1e-07,-210) [-210|211.1008122] "deg" Gateway
BO_ 2566845182 Speeds: 8 Gateway
 SG_ Altitude : 48|16@1+ (0.125,-2500) [-2500|5531.875] "m" Gateway
BO_ 69 Multiplexed: 8 Gateway
 SG_ Page M : 0|8@1+ (1,0) [0|0] "" Gateway
 SG_ First m1 : 8|8@1- (1,0) [0|0] "\u00b0C" Gateway
 SG_ Second m2 : 8|8@1+ (1,0) [0|0] "parsec" Gateway
BA_DEF_ BO_ "VFrameFormat" ENUM "StandardCAN","ExtendedCAN","reserved","J1939PG";
BA_DEF_DEF_ "VFrameFormat" "StandardCAN";
BA_ "VFrameFormat" BO_ 2566845438 3;
VAL_ 68 Gear 0 "P" 1 "R" 7 "SNA" ;
"""
MAPPING = """
[[mappings]]
name = "bus"
topic = "can/{bus}"
format = "can"
can = { dbc = "DBC" }
time = { path = "frame.timestamp", unit = "s" }
[mappings.position]
latitude = { path = "Place.Latitude", unit = "deg" }
longitude = { path = "Place.Longitude", unit = "deg" }
[[mappings.signals]]
path = "Vehicle.Speed"
value = { path = "Wheels.Speed", unit = "km/h" }
[[mappings.signals]]
path = "Vehicle.TraveledDistance"
value = { path = "Wheels.Odometer", unit = "km" }
[[mappings.signals]]
path = "Gear"
value = { path = "Wheels.Gear", unit = "none", absent = ["SNA"] }
"""
T = 1_795_359_064.25
SPEED = {"kind": "signal", "path": "Vehicle.Speed", "value": 36.0, "time": T * 1000}
ODOMETER = {"kind": "signal", "path": "Vehicle.TraveledDistance", "value": pytest.approx(1234.5), "time": T * 1000}
GEAR = {"kind": "signal", "path": "Gear", "value": "R", "time": T * 1000}
POSITION = {
    "kind": "position",
    "latitude": pytest.approx(53.55),
    "longitude": pytest.approx(9.99),
    "time": T * 1000,
}
WHEELS = (3600).to_bytes(2, "little") + (12345).to_bytes(4, "little") + b"\x01\xff"
PLACE = b"".join(round((one + 210) * 1e7).to_bytes(4, "little") for one in (53.55, 9.99))


@pytest.fixture
def mapping(tmp_path: Path) -> str:
    file = tmp_path / "bus.dbc"
    file.write_text(DBC, "cp1252")
    return MAPPING.replace("DBC", str(file))


@pytest.fixture
def parser(mapping: str) -> MessageParser:
    return parser_of(mapping)


def line(identifier: str, data: bytes) -> str:
    return f"({T:.6f}) vcan0 {identifier}#{data.hex().upper()}\n"


def test_lines_of_candump_become_records_and_frames_of_other_messages_are_skipped(parser: MessageParser) -> None:
    assert gives(parser, "can/0", line("044", WHEELS)) == [SPEED, ODOMETER, GEAR]
    several = line("044", WHEELS) + line("123", b"\0") + line("045", b"\1\2" + bytes(6)) + line("18FEF3FE", PLACE)
    assert gives(parser, "can/0", several) == [SPEED, ODOMETER, GEAR, POSITION]
    for other in (line("045", bytes(8)), f"({T}) can0 044#R\n", f"({T}) can0 20000004#0000000000000000", ""):
        assert gives(parser, "can/0", other) == [{"kind": "raw", "reason": "mapping:when:no-match"}], other


@pytest.mark.parametrize(
    "frame",
    [
        {"id": 68, "data": WHEELS.hex()},
        {"id": "044", "data": WHEELS.hex().upper()},
        {"id": "0x44", "data": WHEELS.hex(" "), "extended": False},
    ],
)
def test_frames_in_json_become_records_with_the_members_beside_them(
    parser: MessageParser, frame: dict[str, Any]
) -> None:
    assert gives(parser, "can/0", json.dumps(frame | {"timestamp": T})) == [SPEED, ODOMETER, GEAR]
    place = {"id": 0x18FEF3FE, "data": PLACE.hex(), "timestamp": T}
    assert gives(parser, "can/0", json.dumps([frame | {"timestamp": T}, place])) == [SPEED, ODOMETER, GEAR, POSITION]


def test_a_parameter_group_of_j1939_is_read_from_any_source_and_says_which(mapping: str) -> None:
    place = line("18FEF31C", PLACE)
    assert gives(parser_of(mapping), "can/0", place) == [POSITION]
    when = 'when = [{ path = "frame.source", is = 254 }]\n[mappings.position]'
    chosen = parser_of(mapping.replace("[mappings.position]", when))
    assert gives(chosen, "can/0", place)[0]["reason"] == "mapping:when:no-match"
    assert gives(chosen, "can/0", line("18FEF3FE", PLACE)) == [POSITION]


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (line("044", WHEELS[:4]), "mapping:format:frame"),
        (line("044", WHEELS).replace("#", "="), "mapping:format:frame"),
        (line("8FF", WHEELS), "mapping:format:frame"),
        ('{"id": 68}', "mapping:format:frame"),
        ('{"id": 68, "data": "0"}', "mapping:format:frame"),
        ('{"id": 68.5, "data": ""}', "mapping:format:frame"),
        ('{"id": 536870912, "data": ""}', "mapping:format:frame"),
        ('{"id": "18FEF3FE", "data": "", "extended": false}', "mapping:format:frame"),
        ('{"id": 68, "data": ', "mapping:format:json"),
        ("[3]", "mapping:format:frame"),
        (json.dumps({"id": 68, "data": WHEELS.hex()}), "mapping:time:missing"),
        (line("18FEF3FE", b"\xff" * 8), "no-fix"),
        ("x\n" * (MAX_MESSAGE_VALUES + 1), "mapping:format:too-many-values"),
        (b"\xff\xfe", "mapping:format:utf-8"),
    ],
)
def test_what_cannot_be_read_stays_raw_with_a_reason(parser: MessageParser, payload: str | bytes, reason: str) -> None:
    assert gives(parser, "can/0", payload) == [{"kind": "raw", "reason": reason}]


def test_a_broken_frame_beside_good_ones_stays_raw_alone(parser: MessageParser) -> None:
    records = gives(parser, "can/0", line("044", WHEELS[:4]) + line("18FEF3FE", PLACE))
    assert records == [{"kind": "raw", "reason": "mapping:format:frame"}, POSITION]


def test_a_number_outside_of_the_range_of_the_file_is_no_value(parser: MessageParser) -> None:
    data = b"\xff" * 6 + b"\x07\xff"
    assert gives(parser, "can/0", line("044", data)) == [{"kind": "raw", "reason": "mapping:outputs:missing"}]


def test_only_the_signals_of_the_page_of_a_multiplexed_message_are_there(mapping: str) -> None:
    text = mapping.replace("Wheels.Speed", "Multiplexed.First").replace("km/h", "degC")
    text = text.replace("Vehicle.Speed", "Vehicle.Exterior.AirTemperature")
    parser = parser_of(text)
    (record,) = gives(parser, "can/0", line("045", b"\1\xfe" + bytes(6)))
    assert record["value"] == -2
    assert gives(parser, "can/0", line("045", b"\2\xfe" + bytes(6)))[0]["reason"] == "mapping:outputs:missing"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            '"Wheels.Speed", unit = "km/h"',
            '"Wheels.Speed", unit = "m/s"',
            "Vehicle.Speed.value: unit: the DBC file gives Wheels.Speed in 'kmh', not in 'm/s'; did you mean 'km/h'?",
        ),
        ('"Place.Latitude", unit = "deg"', '"Place.Latitude", unit = "rad"', "position.latitude: unit: the DBC file"),
        ("Wheels.Speed", "Weels.Speed", "has no message 'Weels'; did you mean 'Wheels'?"),
        ("Wheels.Speed", "Wheels.Sped", "message Wheels has no signal 'Sped'; did you mean 'Speed'?"),
        ("Wheels.Speed", "Wheels.xyzzy", "has no signal 'xyzzy'; it has Gear, Odometer, Speed"),
        ("Wheels.Speed", "Wheels.Speed.x", "'Wheels.Speed.x': a path is MESSAGE.SIGNAL, or frame.MEMBER"),
        ("Wheels.Speed", "/Wheels.Speed", "a path is MESSAGE.SIGNAL"),
        ("bus.dbc", "bus.db", "mapping bus: can.dbc: "),
        ('can = { dbc = "', '#can = { dbc = "', 'mapping bus: can.dbc and format = "can" belong together'),
        ('format = "can"', 'format = "json"', 'mapping bus: can.dbc and format = "can" belong together'),
        ("{ dbc =", "{ dcb =", "mappings.0.can.dcb: no such setting; known are dbc"),
    ],
)
def test_a_mistake_is_named_with_the_nearest_right_word(mapping: str, old: str, new: str, problem: str) -> None:
    assert old in mapping
    with pytest.raises(SettingsError) as caught:
        settings_of(mapping.replace(old, new))
    assert problem in "\n".join(caught.value.lines), caught.value.lines


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('VERSION ""', "has no message"),
        ("hello", "is not a readable DBC file"),
        (DBC.replace("Wheels: 8", "frame: 8"), "has a message 'frame'"),
        (" " * (MAX_DBC_BYTES + 1), "has more than"),
        (DBC.replace("0|16@1+", "999999999|16@1+"), "beyond 16384 bits"),
        (DBC.replace("0|16@1+", "0|999999999@1+"), "beyond 16384 bits"),
        (DBC.replace("Wheels: 8", "Wheels: 999999999"), "beyond 16384 bits"),
    ],
)
def test_a_file_that_cannot_be_used_is_an_error(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "x.dbc"
    file.write_text(text)
    with pytest.raises(ValueError, match=problem):
        CanDatabase(file)


@pytest.mark.parametrize(("old", "new"), [("BO_ 69 Multi", "BO_ 68 Multi"), ("BO_ 69 Multiplexed", "BO_ 69 Wheels")])
def test_a_message_that_is_there_twice_is_an_error_if_it_is_used(
    mapping: str, tmp_path: Path, old: str, new: str
) -> None:
    (tmp_path / "bus.dbc").write_text(DBC.replace(old, new), "cp1252")
    with pytest.raises(SettingsError, match="messages with one name or one identifier: Wheels, "):
        settings_of(mapping)


def test_the_digest_of_a_mapping_is_of_the_content_of_its_file(mapping: str, tmp_path: Path) -> None:
    (one,) = settings_of(mapping).mappings
    (tmp_path / "moved.dbc").write_text(DBC, "cp1252")
    (same,) = settings_of(mapping.replace("bus.dbc", "moved.dbc")).mappings
    (tmp_path / "moved.dbc").write_text(DBC.replace("0.01", "0.02"), "cp1252")
    (other,) = settings_of(mapping.replace("bus.dbc", "moved.dbc")).mappings
    assert one.digest == same.digest != other.digest


@pytest.mark.parametrize(
    ("text", "word"),
    [
        *[("Km/h", "km/h"), ("°C", "degC"), ("Â°C", "degC"), ("%", "percent"), ("1/min", "rpm"), ("L", "l")],
        *[("K", "K"), ("parsec", None), ("", None), ("k", None), ("kPa", "kPa"), ("KPA", "kPa")],
    ],
)
def test_units_of_dbc_files_have_our_words(text: str, word: str | None) -> None:
    assert unit_word(text) == word


def test_two_mappings_of_one_bus_share_the_frames(mapping: str) -> None:
    second = mapping.replace('"bus"', '"more"').replace("Wheels.Speed", "Speeds.Altitude").replace('"km/h"', '"none"')
    second = second.replace("Vehicle.Speed", "Altitude")
    when = 'when = [{ path = "Speeds", exists = %s }]\n[mappings.position]'
    both = mapping.replace("[mappings.position]", when % "false") + second.replace("[mappings.position]", when % "true")
    frames = line("044", WHEELS) + line("18FEF2FE", bytes(8))
    assert gives(parser_of(both), "can/0", frames) == [
        SPEED,
        ODOMETER,
        GEAR,
        {"kind": "signal", "path": "Altitude", "value": -2500.0, "time": T * 1000},
    ]


@given(
    payload=st.one_of(st.binary(max_size=80), st.from_regex(r"\(1\.5\) can0 0(44|45)#[0-9A-F]{0,16}", fullmatch=True))
)
def test_any_bytes_become_records_or_a_raw_one_with_a_reason(payload: bytes | str, tmp_path_factory: Any) -> None:
    file = tmp_path_factory.getbasetemp() / "any.dbc"
    if not file.exists():
        file.write_text(DBC, "cp1252")
    for record in gives(parser_of(MAPPING.replace("DBC", str(file))), "can/0", payload):
        assert record["kind"] != "raw" or record["reason"].startswith(("mapping:", "no-fix"))


HIDDEN = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"google", "cantools", "bitstruct"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
from tests.edge_agent.mapping.parsers import parser_of
from tests.edge_agent.mapping.test_reading import CSV, PHONES
from waybill.record import MAX_MESSAGE_VALUES
from waybill.settings import SettingsError

parser_of(PHONES + CSV)
for text in sys.argv[1:]:
    try:
        parser_of(text)
    except SettingsError as error:
        print(*error.lines)
"""


def test_a_missing_extra_is_named_at_load_and_other_formats_do_without_it(mapping: str) -> None:
    presets = [f'[[mappings]]\nname = "a"\npreset = "{preset}"\n' for preset in ("sparkplug-b", "gtfs-realtime")]
    done = subprocess.run(
        [sys.executable, "-c", HIDDEN, *presets, mapping], capture_output=True, text=True, timeout=60, check=True
    )
    needs = "needs the package google.protobuf: install the extra edge-protobuf (docs/install.md)"
    sparkplug, gtfs, can = done.stdout.splitlines()
    assert f'mapping a: format "sparkplug-b" {needs}' in sparkplug
    assert f'mapping a: format "gtfs-realtime" {needs}' in gtfs
    assert 'mapping bus: format "can" needs the package cantools: install the extra edge-can' in can


def test_python_can_which_drives_a_bus_is_not_loaded() -> None:
    code = "import sys, edge_agent.mapping.can_frames; sys.exit('can' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
