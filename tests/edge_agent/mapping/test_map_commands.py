"""`edge-agent map`: what a message becomes, and mappings that are proposed from samples."""

import json
import os
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from edge_agent.cli import app
from edge_agent.config import AgentSettings
from edge_agent.mapping.parser import compile_mappings
from edge_agent.mapping.settings import MappingSettings
from edge_agent.mapping.suggestion import Sample, SamplesUnreadable, propose, read_samples
from waybill.settings import SettingsError, parse, printable

AGENT = '[device]\nid = "eu-0001"\n[[uplinks]]\nregion = "eu"\nhost = "127.0.0.1"\n'
PHONES = '[[mappings]]\nname = "phones"\npreset = "owntracks"\n'
TELEMETRY = '[[mappings]]\nname = "cars"\npreset = "teslamate"\n'
FIX = '{"_type":"location","lat":53.55,"lon":9.99,"tst":1795359064,"vel":54}'


def run_map(folder: Path, *words: str, mappings: str = PHONES, stdin: str = "") -> Result:
    file = folder / "agent.toml"
    file.write_text(AGENT + mappings)
    return CliRunner().invoke(app, ["map", words[0], "-c", str(file), *words[1:]], input=stdin)


def try_one(folder: Path, payload: str, topic: str = "owntracks/ada/phone", *words: str) -> Result:
    return run_map(folder, "try", "--topic", topic, "--payload", "-", *words, stdin=payload)


def test_try_shows_the_record_that_a_message_becomes(tmp_path: Path) -> None:
    shown = try_one(tmp_path, FIX)
    assert shown.exit_code == 0
    (label,) = {one.label for one in parse(AgentSettings, AGENT + PHONES, "agent.toml").mappings}
    assert shown.stdout == (
        "owntracks/ada/phone\n"
        f"  position  (mapping {label})\n"
        "    time          2026-11-22T14:51:04.000Z\n"
        "    latitude      53.55\n"
        "    longitude     9.99\n"
        "    speed_mps     15.0\n"
    )
    as_json = json.loads(try_one(tmp_path, FIX, "owntracks/ada/phone", "--json").stdout)
    assert as_json["records"][0] == {
        "kind": "position",
        "mapping": label,
        "time": "2026-11-22T14:51:04.000Z",
        "latitude": 53.55,
        "longitude": 9.99,
        "speed_mps": 15.0,
        "left_out": [],
    }


@pytest.mark.parametrize(
    ("topic", "payload", "said"),
    [
        (
            "owntracks/ada/phone",
            '{"_type":"location","lat":1,"lon":2}',
            "mapping:time:missing: the message has no time",
        ),
        ("owntracks/ada/phone", '{"_type":"location","lat":1,"lon":2}', "the mapping reads `time` at the path tst"),
        ("owntracks/ada/phone", '{"_type":"lwt"}', "mapping:when:no-match"),
        ("owntracks/ada/phone", "hello", "mapping:format:json"),
        ("phones/ada", FIX, "no mapping has this topic; topics of mappings: owntracks/+/+/#"),
        ("vehicle/position", "{}", "wrong-fields: `latitude` is missing"),
    ],
)
def test_try_names_the_reason_and_the_member(tmp_path: Path, topic: str, payload: str, said: str) -> None:
    shown = try_one(tmp_path, payload, topic)
    assert shown.exit_code == 1
    assert said in shown.stdout
    assert f"message: {payload}" in shown.stdout


def test_text_of_a_device_does_not_reach_the_terminal(tmp_path: Path) -> None:
    shown = try_one(tmp_path, "\x1b[2J\x9b31m", "a\x1b[31m/b")
    assert "\x1b" not in shown.stdout
    assert "\x9b" not in shown.stdout
    assert r"\x1b[2J" in shown.stdout


def test_try_joins_the_messages_of_a_file(tmp_path: Path) -> None:
    samples = tmp_path / "messages.txt"
    samples.write_text(
        "teslamate/cars/1/latitude 53.5\nteslamate/cars/1/longitude 9.5\nteslamate/cars/1/latitude 53.55\n"
        + "".join(f"teslamate/cars/1/longitude {degrees}\n" for degrees in (9.99, 9.98, 9.97))
    )
    shown = run_map(tmp_path, "try", "--samples", str(samples), "--json", mappings=TELEMETRY)
    records = [record for line in shown.stdout.splitlines() for record in json.loads(line)["records"]]
    places = [(one["latitude"], one["longitude"], "+held" in one["mapping"]) for one in records if "latitude" in one]
    assert places == [(53.5, 9.5, False), (53.55, 9.99, False), (53.55, 9.98, True)]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("try",), 1, "give either --topic and --payload, or --samples"),
        (("try", "--samples", "missing.txt"), 1, "missing.txt"),
        (("suggest", "--samples", "missing.txt"), 1, "give either --samples or --config"),
    ],
)
def test_wrong_options_end_with_one_line(tmp_path: Path, words: tuple[str, ...], code: int, said: str) -> None:
    shown = run_map(tmp_path, *words)
    assert shown.exit_code == code
    assert said in shown.stderr
    assert len(shown.stderr.splitlines()) == 1


def test_a_unit_that_nobody_replaced_is_refused_with_the_words_to_choose_from(tmp_path: Path) -> None:
    mapping = propose(read_samples('devices/7/gps {"ts":1795359064,"lat":53.55,"lon":9.99,"speed":12}'))
    assert 'speed = { path = "speed", unit = "?" }' in mapping
    refused = run_map(tmp_path, "try", "-t", "a", "-p", "b", mappings=mapping)
    assert refused.exit_code == os.EX_CONFIG
    assert "speed" in refused.stderr
    assert "the unit is not known yet: replace '?' with one of m/s, km/h" in refused.stderr
    read = run_map(
        tmp_path,
        *("try", "-t", "devices/7/gps", "-p", '{"ts":1795359064,"lat":53.55,"lon":9.99,"speed":36}'),
        mappings=mapping.replace('unit = "?"', 'unit = "km/h"'),
    )
    assert "speed_mps     10.0" in read.stdout


# Proposals.


def proposed(*lines: str) -> list[dict[str, object]]:
    tables = tomllib.loads(propose(read_samples("\n".join(lines))))
    return list(tables.get("mappings", []))


def test_a_known_format_gets_its_preset() -> None:
    hfp = '{"VP":{"tst":"2026-11-22T14:51:04.626Z","lat":60.1,"long":24.6,"loc":"GPS"}}'
    topic = "/hfp/v2/journey/ongoing/vp/bus/0018/00423/2159/2/Matinkylä (M)/09:32/2442201/3/60;24/16/58/67"
    assert proposed(f"owntracks/ada/phone {FIX}", 'owntracks/ada/phone {"_type":"lwt"}', f"{topic} {hfp}") == [
        {"name": "hsl-hfp", "preset": "hsl-hfp"},
        {"name": "owntracks", "preset": "owntracks"},
    ]
    (nmea,) = proposed("gnss/roof $GPGSV,1,1,00*79", "$GPRMC,145104,V,,,,,,,221126,,,N*4F")
    assert nmea == {"name": "gnss-roof", "preset": "nmea", "topic": "gnss/roof"}


def test_levels_that_differ_and_arrays_are_found() -> None:
    (mapping,) = proposed(
        'fleet/vans/17/gps {"points":[{"t":{"timestamp":"2026-11-22T14:51:04Z"},"lat":53.55,"lng":9.99,"spd_kmh":50}]}',
        'fleet/vans/18/gps {"points":[{"t":{"timestamp":"2026-11-22T14:51:05Z"},"lat":53.56,"lng":9.98}],"hdop":1}',
    )
    assert mapping == {
        "name": "fleet-vans-gps",
        "topic": "fleet/vans/{van}/gps",
        "each": "points",
        "time": {"path": "t.timestamp", "unit": "iso"},
        "position": {
            "latitude": {"path": "lat", "unit": "deg"},
            "longitude": {"path": "lng", "unit": "deg"},
            "speed": {"path": "spd_kmh", "unit": "km/h"},
        },
    }


def test_a_time_above_the_array_and_odd_names_have_their_paths() -> None:
    (mapping,) = proposed('gw {"ts":1795359064626,"Bus 17":[{"lat":53.55,"lon":9.99}]}')
    assert mapping["each"] == '"Bus 17"'
    assert mapping["time"] == {"path": "/ts", "unit": "ms"}


def test_flat_topics_become_one_mapping_with_a_join() -> None:
    (mapping,) = proposed("car/latitude 53.55", "car/longitude 9.99", "car/odometer 1653")
    assert mapping["topic"] == "car/{member}"
    assert mapping["format"] == "text"
    assert mapping["time"] == {"else": "?"}
    assert mapping["join"] == {"settle_ms": 500, "hold_s": 30}
    assert mapping["position"] == {
        "latitude": {"path": ".", "unit": "deg", "when": [{"level": "member", "is": "latitude"}]},
        "longitude": {"path": ".", "unit": "deg", "when": [{"level": "member", "is": "longitude"}]},
    }


@pytest.mark.parametrize(
    ("payload", "time", "unit"),
    [
        ('{"ts":1795359064,"lat":53.55,"lon":9.99}', {"path": "ts", "unit": "s"}, "deg"),
        ('{"ts":1795359064626000,"lat":535500000,"lon":99900000}', {"path": "ts", "unit": "us"}, "?"),
        ('{"ts":"22.11.2026","lat":0.93,"lon":0.17}', {"path": "ts", "unit": "?"}, "?"),
        ('{"ts":"2026-11-22 14:51:04","lat":1,"lon":9.99}', {"path": "ts", "unit": "iso", "zone": "?"}, "deg"),
        ('{"lat":53.55,"lon":9.99}', {"else": "?"}, "deg"),
    ],
)
def test_what_a_sample_does_not_show_stays_a_question(payload: str, time: dict[str, str], unit: str) -> None:
    (mapping,) = proposed(f"a/b {payload}")
    assert mapping["time"] == time
    assert mapping["position"] == {
        "latitude": {"path": "lat", "unit": unit},
        "longitude": {"path": "lon", "unit": unit},
    }
    is_open = "?" in f"{time}{unit}"
    if is_open:
        with pytest.raises(SettingsError):
            parse(AgentSettings, AGENT + propose([Sample("a/b", payload.encode())]), "agent.toml")


def test_columns_of_csv_stay_a_question() -> None:
    (mapping,) = proposed("trk/17 1795359064;53.55;9.99;29.2;A")
    assert mapping["csv"] == {"columns": [f"column{place}" for place in range(1, 6)], "delimiter": ";"}
    with pytest.raises(SettingsError, match="the path is not known yet"):
        parse(AgentSettings, AGENT + propose([Sample("trk/17", b"1,53.55,9.99,2")]), "agent.toml")


def test_dilution_of_precision_is_never_an_accuracy() -> None:
    (mapping,) = proposed('a/b {"ts":1795359064,"lat":53.55,"lon":9.99,"hdop":0.9,"pdop":1.2,"accuracy_hdop":1}')
    assert "accuracy" not in str(mapping["position"])


def test_a_message_that_is_nested_too_deeply_is_no_proposal_and_no_fault() -> None:
    assert "no latitude" in propose([Sample("a/b", b'{"lat":' * 900 + b"1" + b"}" * 900)])


def test_samples_of_mosquitto_sub_in_both_forms_are_read() -> None:
    assert read_samples('a b\n{"topic":"c d","qos":0,"payload":"{\\"x\\":1}"}\n{"topic":"e","payload":{"x":1}}\n') == [
        Sample("a", b"b"),
        Sample("c d", b'{"x":1}'),
        Sample("e", b'{"x": 1}'),
    ]
    with pytest.raises(SamplesUnreadable, match="no message in the samples"):
        read_samples('{"topic":"a","payload":' + '{"a":' * 3_000 + "1" + "}" * 3_000 + "}")
    with pytest.raises(SamplesUnreadable, match="no message in the samples"):
        read_samples(r'{"topic":"a","payload":"\ud800"}')
    with pytest.raises(SamplesUnreadable, match="no message in the samples"):
        read_samples("\n\nalone\nwaybill/agent/arrived/edge-agent 0\n")


TEXTS = st.text(max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.integers() | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["lat", "lon", "ts", "speed", "a b"]) | TEXTS, inner, max_size=5)
    ),
    max_leaves=12,
)


TOPICS = st.text("ab7/{}+$ é\x1b", min_size=1, max_size=20)


@given(
    st.lists(st.tuples(TOPICS, VALUES.map(json.dumps) | TEXTS | st.just("$GPGSV,1,1,00*79")), min_size=1, max_size=6)
)
def test_a_proposal_is_valid_toml_and_loads_unless_a_question_is_open(messages: list[tuple[str, str]]) -> None:
    samples = [Sample(topic, payload.encode("utf-8", "replace")) for topic, payload in messages]
    text = propose(samples)
    assert printable(text, keeps="\n") == text
    for mapping in tomllib.loads(text).get("mappings", []):
        try:
            compile_mappings((MappingSettings.model_validate(mapping),))
        except ValueError:
            assert "'?'" in str(mapping)
