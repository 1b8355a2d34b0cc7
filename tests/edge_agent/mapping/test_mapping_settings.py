"""Mistakes in the settings of mappings are errors at load, with the nearest right word."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from edge_agent.cli import app
from tests.edge_agent.mapping.parsers import AGENT, settings_of
from tests.edge_agent.mapping.test_join import CAR
from tests.edge_agent.mapping.test_reading import CSV, PHONES, SIGNAL_K, TWO
from waybill.settings import SettingsError


@pytest.mark.parametrize(
    ("text", "old", "new", "problem"),
    [
        (
            PHONES,
            '"km/h"',
            '"kmh"',
            "mappings.0.position.speed.unit: no unit 'kmh' of speed; did you mean 'km/h'? known",
        ),
        (PHONES, ', unit = "km/h"', "", "mappings.0.position.speed.unit: needs a unit: one of m/s, km/h"),
        (PHONES, '"ft"', '"?"', "mappings.0.position.altitude.unit: the unit is not known yet: replace '?' with"),
        (PHONES, '"ft"', '"kn"', "no unit 'kn' of length"),
        (PHONES, "TraveledDistance", "TravelledDistance", "did you mean the path 'Vehicle.TraveledDistance'?"),
        (PHONES, 'unit = "none"', 'unit = "V"', "Phone.{user} is not in the catalogue, so 'V' cannot be converted"),
        (PHONES, "[mappings.position]", "[mappings.postion]", "no such setting; did you mean 'position'?"),
        (
            PHONES,
            'is = "location"',
            'equals = "location"',
            "mappings.0.when.0.equals: no such setting; known are exists",
        ),
        (PHONES, 'is = "location"', 'is = "a", exists = true', "a condition needs one of is, is_not, in and exists"),
        (PHONES, '"tst", unit', '"tst..x", unit', "mappings.0.time.path: 'tst..x' is not a path, see character 5"),
        (PHONES, ', unit = "s"', "", "needs a unit: one of s, ms, us, ns and iso; or a format"),
        (PHONES, 'path = "tst", unit = "s"', "", 'only else = "arrival"'),
        (PHONES, 'unit = "s"', 'unit = "s", zone = "UTC"', "zone is for texts"),
        (PHONES, 'level = "device"', 'level = "devise"', "no level 'devise'; did you mean 'device'?"),
        (
            PHONES,
            "owntracks/{user}",
            "owntracks/{usr}",
            "mapping phones: signals.Phone.{user}: no level 'user'; did you mean 'usr'?",
        ),
        (PHONES, "{device}", "x{device}", "'x{device}' mixes text and a wildcard"),
        (PHONES, "owntracks/{user}", "#/{user}", "'#' can only be the last level"),
        (PHONES, 'path = "Phone.{user}"', 'path = "waybill.x"', "names that begin with waybill. are reserved"),
        (PHONES, 'topic = "owntracks', 'preset = "owntrack"\ntopic = "owntracks', "no preset 'owntrack'; "),
        (CSV, "Europe/Berlin", "Europe/Berln", "no time zone 'Europe/Berln'; did you mean 'Europe/Berlin'?"),
        (CSV, ', zone = "Europe/Berlin"', "", "a format without %z needs a zone"),
        (CSV, 'columns = ["at", "lat", "lon", "spd"]', "", "mappings.0.csv.columns"),
        (CSV, 'format = "csv"', 'format = "text"', 'csv.columns and format = "csv" belong together'),
        (CSV, "%H:%M:%S", "%H:%M:%S %Z", "%Z reads the name of a zone without its offset"),
        (CSV, "%H:%M:%S", "%H:%M:%SZ", 'the format has Z, which is UTC: set zone = "UTC"'),
        (CSV, '%S", zone = "Europe/Berlin"', '%S %%z"', "a format without %z needs a zone"),
        (CSV, "%S", "%q", "reads no time"),
        (CSV, "%d.%m.%Y ", "", "loses a part of year, month, day, hour and minute: '14:51:04'"),
        (CSV, "%H", "%I", "loses a part of year, month, day, hour and minute"),
        (CSV, 'format = "csv"', 'format = "csv"\neach = "a"', "each is for JSON"),
        (SIGNAL_K, "updates.values", "updates[0].values", "arrays are read element by element"),
        (CAR, "settle_ms", "settle", "mappings.0.join.settle: no such setting; did you mean 'settle_ms'?"),
        (TWO, '"door" }', '"fix" }', "mappings fixes and doors: a message can have both topics, gw/{vehicle} and gw/+"),
        (TWO, 'name = "doors"', 'name = "fixes"', "two mappings have the name 'fixes'"),
    ],
)
def test_a_mistake_is_named_with_its_place_and_the_nearest_right_word(
    text: str, old: str, new: str, problem: str
) -> None:
    assert old in text
    with pytest.raises(SettingsError) as caught:
        settings_of(text.replace(old, new))
    assert problem in "\n".join(caught.value.lines), caught.value.lines


@pytest.mark.parametrize(
    ("first", "second", "is_free"),
    [
        ('path = "k", is = 1', 'path = "k", is = 2', True),
        ('path = "k", is = 1', 'path = "k", is = "1"', False),
        ('path = "k", in = [1, 2]', 'path = "k", in = [2, 3]', False),
        ('path = "k", is = 1', 'path = "k", is_not = 1', True),
        ('path = "k", is = 1', 'path = "k", is_not = 2', False),
        ('path = "k", exists = true', 'path = "k", exists = false', True),
        ('path = "k", is = 1', 'path = "k", exists = false', True),
        ('path = "k", is = 1', 'path = "other", is = 2', False),
        ('level = "vehicle", is = "7"', 'level = "v", is = "8"', True),
    ],
)
def test_conditions_exclude_each_other_only_if_no_message_satisfies_both(
    first: str, second: str, is_free: bool
) -> None:
    text = TWO.replace('path = "kind", is = "fix"', first).replace('path = "kind", is = "door"', second)
    text = text.replace("gw/+", "gw/{v}")
    if is_free:
        assert len(settings_of(text).mappings) == 2
    else:
        with pytest.raises(SettingsError, match="add a `when` to both"):
            settings_of(text)


EXAMPLES = """
[[mappings.examples]]
topic = "owntracks/a/b"
payload = '{"_type": "location", "tst": 1795359064, "lat": 53.5, "lon": 9.9, "vel": 36}'
gives = [{ kind = "position", latitude = 53.5, speed_mps = 10, time = "2026-11-22T14:51:04Z" }]
[[mappings.examples]]
topic = "owntracks/a/b"
payload = '{"_type": "location", "lat": 53.5, "lon": 9.9}'
refused = "mapping:time:missing"
"""


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("", "", ""),
        (
            "speed_mps = 10,",
            "speed_mps = 36,",
            "mappings.0.examples.0: mapping phones: record 0: speed_mps is 10.0 instead of 36",
        ),
        ("speed_mps = 10,", "speed = 10,", "record 0 has no 'speed'; did you mean 'speed_mps'?"),
        (
            "mapping:time:missing",
            "mapping:time:unit",
            "examples.1: mapping phones: is not refused with mapping:time:unit",
        ),
        ('"lat": 53.5, "lon": 9.9, "vel"', '"vel"', 'examples.0: mapping phones: record 0: kind is "raw" instead of'),
    ],
)
def test_check_config_runs_the_examples(tmp_path: Path, old: str, new: str, problem: str) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(AGENT + PHONES + EXAMPLES.replace(old, new))
    result = CliRunner().invoke(app, ["check-config", "-c", str(file)])
    assert (result.exit_code, problem in result.output) == (78 if problem else 0, True)
