"""Whatever stands at whatever place of a feature: it is a fence, a gate or a message, and its neighbour is used."""

from __future__ import annotations

import json
from typing import Any

import pytest

from geo.spatial import Fence, FenceSet, Gate, GateSet, fences_from_geojson
from geo.spatial.geojson import MAX_REFUSED
from tests.fuzz.targets.fences_geojson import FEATURES, WEEK, judge_text
from tests.geo.spatial.json_values import GONE, UNEXPECTED, Place, places, put

NEIGHBOUR = {
    "type": "Feature",
    "properties": {"id": "neighbour"},
    "geometry": {"type": "Polygon", "coordinates": [[[0, 0], [1, 0], [1, 1], [0, 0]]]},
}


@pytest.mark.parametrize("whole", FEATURES, ids=lambda one: str(one["properties"]["id"]))
def test_any_value_at_any_place_is_used_or_refused_and_its_neighbour_is_used(whole: dict[str, Any]) -> None:
    fences, gates = list[Fence](), list[Gate]()
    for place in places(whole):
        if any(isinstance(key, int) and key > 1 for key in place):  # of a list the first two, the others are as they
            continue
        for value in UNEXPECTED:
            report = judge_text(json.dumps(NEIGHBOUR) + "\n" + json.dumps(put(whole, place, value)))
            assert report.fences[0].id == "neighbour", (place, value)
            fences += report.fences[1:]
            gates += report.gates
    FenceSet(fences)
    GateSet(gates)


def test_what_nests_almost_too_deeply_is_named_wherever_it_stands() -> None:
    whole = FEATURES[0]
    for depth in range(850, 1000, 3):
        deep = "[" * depth + "]" * depth
        for place in (("geometry", "type"), ("properties", "id"), ("properties", "weekly"), ("properties", "priority")):
            text = json.dumps(put(whole, place, "HERE")).replace('"HERE"', deep)
            report = fences_from_geojson(json.dumps(NEIGHBOUR) + "\n" + text)
            assert ([one.id for one in report.fences], len(report.refused)) == (["neighbour"], 1)


def test_a_property_that_is_null_is_not_given() -> None:
    names = ("radius_m", "width_m", "gate", "priority", "weekly", "speed_limit_mps", "effective_from")
    whole = put(NEIGHBOUR, ("properties",), {"id": "n"} | dict.fromkeys(names))
    report = fences_from_geojson(json.dumps(whole))
    assert (report.refused, [(one.id, one.priority) for one in report.fences]) == ((), [("n", 0)])


@pytest.mark.parametrize("value", ["true", 1, 0, "false", [True]])
def test_a_gate_is_true_or_false(value: object) -> None:
    whole = put(NEIGHBOUR, ("properties", "gate"), value)
    assert "gate" in fences_from_geojson(json.dumps(whole)).refused[0]


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (
            ("timezone",),
            "Factory",
            "weekly.timezone: 'Factory' is not a valid time zone; they are named like 'Europe/Berlin'",
        ),
        (("windows", 0, "days", 0), "Mon", "weekly.windows[0].days[0]: is none of mon, tue, wed, thu, fri, sat, sun"),
        (
            ("windows", 0, "from"),
            "7:00",
            "weekly.windows[0].from: is not a time of the local clock like 07:00, up to 24:00",
        ),
        (("windows", 0, "until"), GONE, "weekly.windows[0].until: is not there"),
        (("windows", 0, "to"), "08:00", "weekly.windows[0].to: is unknown"),
        (("windows",), [], "weekly.windows: is empty"),
        ((), [], "weekly: is not an object"),
    ],
)
def test_what_is_wrong_with_windows_is_said_in_the_words_of_their_format(
    place: Place, value: object, said: str
) -> None:
    whole = put(FEATURES[0], ("properties", "weekly"), put(WEEK, place, value))
    assert fences_from_geojson(json.dumps(whole)).refused == (f"line 1: fence 'a': {said}",)


def test_ten_thousand_refusals_are_listed_and_the_others_counted() -> None:
    report = fences_from_geojson("[" + "1," * (MAX_REFUSED + 6) + json.dumps(NEIGHBOUR) + "]")
    assert (len(report.fences), len(report.refused)) == (1, MAX_REFUSED + 1)
    assert report.refused[-1] == "and 6 more features that cannot be used"
