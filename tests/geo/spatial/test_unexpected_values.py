"""Whatever stands at whatever place of a feature: it is a fence, a gate or a message, and its neighbour is used."""

from __future__ import annotations

import json
from typing import Any

import pytest

from geo.spatial import Fence, FenceSet, Gate, GateSet, fences_from_geojson
from geo.spatial.geojson import MAX_REFUSED
from tests.fuzz.targets.files import FEATURES, judge_text
from tests.geo.spatial.json_values import UNEXPECTED, places, put

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


def test_ten_thousand_refusals_are_listed_and_the_others_counted() -> None:
    report = fences_from_geojson("[" + "1," * (MAX_REFUSED + 6) + json.dumps(NEIGHBOUR) + "]")
    assert (len(report.fences), len(report.refused)) == (1, MAX_REFUSED + 1)
    assert report.refused[-1] == "and 6 more features that cannot be used"
