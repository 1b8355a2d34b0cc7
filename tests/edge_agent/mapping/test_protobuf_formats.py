"""Sparkplug B and GTFS-realtime: values, what births tell, limits; the presets' examples have whole messages."""

import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from edge_agent.cli import app
from edge_agent.mapping.formats import Decoder, NotForMappings, Undecodable, UndecodableMessage
from edge_agent.mapping.protobuf_formats import (
    MAX_BIRTHS,
    MAX_KNOWN_METRICS,
    MAX_METRICS,
    MAX_NAME_BYTES,
    MAX_PROTOBUF_BYTES,
    SparkplugDecoder,
    gtfs_decoder,
)
from tests.edge_agent.mapping.parsers import AGENT, gives, parser_of, settings_of
from tests.edge_agent.mapping.protobuf_writer import GTFS, SPARKPLUG, encode
from waybill.settings import SettingsError

T = 1_795_359_064_000
INT8, INT16, INT32, INT64, UINT8, UINT32, UINT64, FLOAT, DOUBLE, BOOLEAN, STRING = 1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12
DATE_TIME, DATA_SET = 13, 16


def payload(*metrics: dict[str, Any], **members: Any) -> bytes:
    return encode({"timestamp": T, "metrics": list(metrics), **members}, SPARKPLUG)


def reason(decode: Decoder, data: bytes) -> str:
    with pytest.raises(UndecodableMessage) as caught:
        decode(data)
    return f"{caught.value.field}:{caught.value.why}"


@pytest.mark.parametrize(
    ("datatype", "member", "written", "value"),
    [
        (INT8, "int_value", 0xFF, -1),
        (INT8, "int_value", 0xFFFFFF80, -128),
        (INT16, "int_value", 0xFFFE, -2),
        (INT32, "int_value", 0xFFFFFFFF, -1),
        (INT32, "long_value", 0xFFFFFFFFFFFFFFFF, -1),
        (INT64, "long_value", 1 << 63, -(1 << 63)),
        (UINT32, "int_value", 0xFFFFFFFF, 0xFFFFFFFF),
        (UINT32, "long_value", 0xFFFFFFFF, 0xFFFFFFFF),
        (UINT64, "long_value", (1 << 64) - 1, (1 << 64) - 1),
        (FLOAT, "float_value", 0.5, 0.5),
        (DOUBLE, "double_value", 53.55, 53.55),
        (DOUBLE, "double_value", float("nan"), None),
        (FLOAT, "float_value", float("inf"), None),
        (BOOLEAN, "boolean_value", 1, True),
        (STRING, "string_value", "ü", "ü"),
        (DATE_TIME, "long_value", T, T),
        (INT8, "int_value", 0x1FF, "format:value"),
        (INT16, "int_value", 0xFFFF0000, "format:value"),
        (UINT8, "int_value", 256, "format:value"),
        (DOUBLE, "int_value", 5, "format:value"),
        (STRING, "boolean_value", 1, "format:value"),
        (0, "int_value", 5, "datatype:unknown"),
    ],
)
def test_a_value_is_read_by_its_data_type_or_refused(datatype: int, member: str, written: Any, value: Any) -> None:
    decode = SparkplugDecoder().at("spBv1.0/g/NDATA/n")
    data = payload({"name": "x", "timestamp": T, "datatype": datatype, member: written})
    if isinstance(value, str) and ":" in value:
        assert reason(decode, data) == value
    else:
        metrics = decode(data)["metrics"]
        assert metrics == {"x": value}
        assert type(metrics["x"]) is type(value)


def test_a_metric_without_a_plain_value_is_missing_and_null_is_null() -> None:
    decode = SparkplugDecoder().at("spBv1.0/g/NDATA/n")
    data = payload(
        {"name": "set", "timestamp": T, "datatype": DATA_SET, "bytes_value": "x"},
        {"name": "none", "timestamp": T, "is_null": 1},
        seq=7,
    )
    assert decode(data) == {"timestamp": T, "metrics": {"none": None}, "payload": {"timestamp": T, "seq": 7}}


def test_metrics_of_one_time_are_an_element_and_no_value_hides_another() -> None:
    decode = SparkplugDecoder().at("spBv1.0/g/NDATA/n")
    stored = [{"name": "x", "timestamp": T + at, "double_value": value} for at, value in ((0, 1.0), (1, 2.0), (1, 3.0))]
    elements = decode(payload(*stored, {"name": "y", "timestamp": T, "double_value": 4.0}))
    assert [(one["timestamp"], one["metrics"]) for one in elements] == [
        (T, {"x": 1.0, "y": 4.0}),
        (T + 1, {"x": 2.0}),
        (T + 1, {"x": 3.0}),
    ]


BIRTH = payload({"name": "n", "alias": 1, "timestamp": T, "datatype": INT8, "int_value": 1})
DATA = payload({"alias": 1, "timestamp": T, "int_value": 0xFF})


def test_data_has_the_names_and_types_of_the_last_birth_of_the_same_node_or_device() -> None:
    decoder = SparkplugDecoder()
    for prefix in ("", "site/1/"):
        decoder.at(f"{prefix}spBv1.0/g/DBIRTH/n/d")(BIRTH)
        assert decoder.at(f"{prefix}spBv1.0/g/DDATA/n/d")(DATA)["metrics"] == {"n": -1}
    for other in ("spBv1.0/g/NDATA/n", "spBv1.0/g/DDATA/m/d", "spBv1.0/h/DDATA/n/d", "x/spBv1.0/g/DDATA/n/d"):
        assert reason(decoder.at(other), DATA) == "alias:unknown"
    decoder.at("spBv1.0/g/DBIRTH/n/d")(payload({"name": "new", "alias": 1, "timestamp": T, "datatype": UINT8}))
    assert decoder.at("spBv1.0/g/DDATA/n/d")(DATA)["metrics"] == {"new": 255}


def test_a_node_that_is_born_again_has_no_alias_of_its_devices() -> None:
    decoder = SparkplugDecoder()
    for topic in ("spBv1.0/g/DBIRTH/n/d", "spBv1.0/g/DBIRTH/m/d", "spBv1.0/g/NBIRTH/n"):
        decoder.at(topic)(BIRTH)
    assert reason(decoder.at("spBv1.0/g/DDATA/n/d"), DATA) == "alias:unknown"
    assert decoder.at("spBv1.0/g/DDATA/m/d")(DATA)["metrics"] == {"n": -1}
    assert decoder.at("spBv1.0/g/NDATA/n")(DATA)["metrics"] == {"n": -1}


def test_after_a_birth_that_cannot_be_read_no_alias_of_an_older_one_counts() -> None:
    decoder = SparkplugDecoder()
    birth, data = decoder.at("spBv1.0/g/NBIRTH/n"), decoder.at("spBv1.0/g/NDATA/n")
    metric = {"name": "a", "alias": 1, "timestamp": T}
    for broken, why in (
        (payload(metric, metric | {"name": "b"}), "alias:ambiguous"),
        (payload(metric | {"name": ""}), "format:name"),
        (payload(metric | {"name": "n" * (MAX_NAME_BYTES + 1)}), "format:name"),
        (BIRTH[:-1], "format:protobuf"),
    ):
        birth(BIRTH)
        assert data(DATA)["metrics"] == {"n": -1}
        assert reason(birth, broken) == why
        assert reason(data, DATA) == "alias:unknown"


def test_what_is_remembered_of_births_is_bounded_and_the_oldest_is_forgotten() -> None:
    decoder = SparkplugDecoder()
    for number in range(MAX_BIRTHS + 1):
        decoder.at(f"spBv1.0/g/NBIRTH/{number}")(BIRTH)
    assert reason(decoder.at("spBv1.0/g/NDATA/0"), DATA) == "alias:unknown"
    assert decoder.at("spBv1.0/g/NDATA/1")(DATA)["metrics"] == {"n": -1}
    large = payload(*({"name": f"n{one}", "alias": one, "datatype": INT8} for one in range(MAX_METRICS)))
    for number in range(MAX_KNOWN_METRICS // MAX_METRICS):
        decoder.at(f"spBv1.0/g/NBIRTH/large{number}")(large)
    assert reason(decoder.at(f"spBv1.0/g/NDATA/{MAX_BIRTHS}"), DATA) == "alias:unknown"
    assert decoder.at("spBv1.0/g/NDATA/large0")(DATA)["metrics"] == {"n1": -1}


def test_sizes_are_bounded() -> None:
    decode, feed = SparkplugDecoder().at("spBv1.0/g/NDATA/n"), gtfs_decoder()
    assert reason(decode, payload(*[{"alias": 1}] * (MAX_METRICS + 1))) == "format:too-many-values"
    assert reason(decode, bytes(MAX_PROTOBUF_BYTES + 1)) == "format:too-large"
    assert reason(feed, bytes(MAX_PROTOBUF_BYTES + 1)) == "format:too-large"
    header = {"gtfs_realtime_version": "2.0"}
    assert reason(feed, encode({"header": header, "entity": [{}] * 1001}, GTFS)) == "format:too-many-values"
    assert reason(decode, b"") == "format:empty"


@pytest.mark.parametrize(
    "topic", ["spBv1.0/g/DCMD/n/d", "spBv1.0/g/NDEATH/n", "spBv1.0/STATE/host", "spBv1.0/g/NDATA/n/d", "a/b", "spBv1.0"]
)
def test_commands_deaths_and_other_topics_are_for_no_mapping(topic: str) -> None:
    with pytest.raises(NotForMappings):
        SparkplugDecoder().at(topic)(BIRTH)


def test_a_sparkplug_mapping_needs_the_topic_that_names_the_kind_of_message() -> None:
    with pytest.raises(SettingsError, match=r"spBv1\.0/\{group\}/\{type\}/\{node\}/\{device\}"):
        settings_of('[[mappings]]\nname = "a"\npreset = "sparkplug-b"\ntopic = "plant/{type}"\n')


def test_a_message_from_standard_input_keeps_its_last_byte(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(AGENT + MAPPINGS)
    metric = {"name": "Odometer", "timestamp": T, "datatype": UINT8, "int_value": ord("\n")}
    command = ["map", "try", "-c", str(file), "--topic", TOPICS[1], "--payload", "-"]
    shown = CliRunner().invoke(app, command, input=payload(metric))
    assert "Vehicle.TraveledDistance" in shown.output
    assert "10.0" in shown.output


def test_an_entity_of_a_feed_has_the_names_of_the_specification() -> None:
    vehicle = {
        "trip": {"trip_id": "t7", "start_date": "20261122", "route_id": "4"},
        "position": {"latitude": 53.5, "longitude": 9.75},
        "current_status": 1,
        "stop_id": "s1",
        "vehicle": {"id": "bus-7", "label": "7"},
        "timestamp": T // 1000,
    }
    header = {"gtfs_realtime_version": "2.0", "timestamp": T // 1000}
    data = encode({"header": header, "entity": {"id": "a", "vehicle": vehicle}}, GTFS)
    assert gtfs_decoder()(data) == [
        {"id": "a", "vehicle": vehicle | {"current_status": "STOPPED_AT"}, "header": header}
    ]
    (entity,) = gtfs_decoder()(encode({"header": header}, GTFS) + b"\x12\x03\x0a\x01\xff")
    assert entity == Undecodable("utf-8", b"\x0a\x01\xff")


def feed(*names: str) -> bytes:
    place = {"position": {"latitude": 53.5, "longitude": 9.75}, "timestamp": T // 1000}
    named = [place | ({"vehicle": {"id": name}} if name else {}) for name in names]
    entities = [{"id": str(number), "vehicle": vehicle} for number, vehicle in enumerate(named)]
    return encode({"header": {"gtfs_realtime_version": "2.0"}, "entity": entities}, GTFS)


@pytest.mark.parametrize("feeds", [[["a", "b"]], [["a"], ["b"]], [["", ""]], [["a", ""]]])
def test_a_feed_of_several_vehicles_is_refused_until_a_condition_names_the_agents_one(feeds: list[list[str]]) -> None:
    plain = '[[mappings]]\nname = "g"\npreset = "gtfs-realtime"\n'
    parser, mine = parser_of(plain), parser_of(f'{plain}when = [{{ path = "vehicle.vehicle.id", is = "a" }}]\n')
    messages = [feed(*names) for names in feeds]
    last = [gives(parser, TOPICS[2], one)[0] for one in [*messages, messages[0]]][-1]
    assert last == {"kind": "raw", "reason": "mapping:vehicle:several"}
    assert "vehicle.vehicle.id" in parser.rows()[0]["last_refusal"]
    kinds = [record["kind"] for one in messages for record in gives(mine, TOPICS[2], one) if record["kind"] != "raw"]
    assert kinds == ["position"] * (feeds != [["", ""]])
    again = parser_of(plain)
    assert [len(gives(again, TOPICS[2], feed("a", "a"))), len(gives(again, TOPICS[2], feed("a")))] == [2, 1]


MAPPINGS = '[[mappings]]\nname = "s"\npreset = "sparkplug-b"\n[[mappings]]\nname = "g"\npreset = "gtfs-realtime"\n'
TOPICS = ("spBv1.0/g/DBIRTH/n/d", "spBv1.0/g/DDATA/n/d", "gtfs-realtime/x")
WHOLE = (
    payload(
        {"name": "Position/Latitude", "alias": 1, "timestamp": T, "datatype": DOUBLE, "double_value": 53.5},
        {"name": "Position/Longitude", "alias": 2, "timestamp": T, "datatype": DOUBLE, "double_value": 9.75},
    ),
    encode(
        {
            "header": {"gtfs_realtime_version": "2.0"},
            "entity": {"vehicle": {"position": {"latitude": 53.5, "longitude": 9.75}, "timestamp": T // 1000}},
        },
        GTFS,
    ),
)


@given(
    st.sampled_from(TOPICS),
    st.one_of(
        st.binary(max_size=200),
        st.builds(
            lambda data, at, byte, end: (data[: at % len(data)] + bytes([byte]) + data[at % len(data) + 1 :])[:end],
            st.sampled_from(WHOLE),
            st.integers(0, 999),
            st.integers(0, 255),
            st.integers(1, 200),
        ),
    ),
)
def test_any_bytes_become_records_or_a_raw_one_with_a_reason(topic: str, data: bytes) -> None:
    for record in gives(parser_of(MAPPINGS), topic, data):
        assert record["kind"] in {"position", "signal", "raw"}
        assert record["kind"] != "raw" or record["reason"].startswith(("mapping:", "no-fix"))


@given(
    st.floats(-90, 90),
    st.floats(-180, 180),
    st.integers(1_577_836_800_000, 4_102_444_799_999),
    st.booleans(),
)
def test_what_a_mapping_accepts_is_what_was_written(latitude: float, longitude: float, time: int, alias: bool) -> None:
    parser = parser_of(MAPPINGS)
    names = {"Position/Latitude": latitude, "Position/Longitude": longitude}
    metrics = [
        {"name": name, "alias": number, "timestamp": time, "datatype": DOUBLE, "double_value": value}
        for number, (name, value) in enumerate(names.items())
    ]
    records = gives(parser, TOPICS[0], payload(*metrics))
    if alias:
        members = ("alias", "timestamp", "double_value")
        records = gives(parser, TOPICS[1], payload(*({name: one[name] for name in members} for one in metrics)))
    if (latitude, longitude) != (0, 0):
        assert records == [
            {"kind": "position", "latitude": latitude, "longitude": longitude, "time": pytest.approx(time)}
        ]
    (single,) = struct.unpack("<f", struct.pack("<f", latitude))
    entity = {"vehicle": {"position": {"latitude": latitude, "longitude": 1.5}, "timestamp": time // 1000}}
    feed = encode({"header": {"gtfs_realtime_version": "2.0"}, "entity": entity}, GTFS)
    (record,) = gives(parser, TOPICS[2], feed)
    assert record == {"kind": "position", "latitude": single, "longitude": 1.5, "time": time // 1000 * 1000}
