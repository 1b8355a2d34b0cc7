"""Reading GeoJSON: every feature is used or named with its place, whatever surrounds it."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geo.spatial import fences_from_geojson
from geo.spatial.geojson import MAX_REFUSED
from tests.examples import examples
from tests.fuzz.targets.files import FEATURES
from tests.geo.spatial.json_values import put

RING = [[0, 0], [1, 0], [1, 1], [0, 1], [0, 0]]


def feature(name: object, **properties: object) -> str:
    geometry = {"type": "Polygon", "coordinates": [RING]}
    return json.dumps({"type": "Feature", "properties": {"id": name} | properties, "geometry": geometry})


def collection(*features: str) -> str:
    return '{"type": "FeatureCollection", "features": [' + ",".join(features) + "]}"


A, B, C = feature("A"), feature("B"), feature("C")


def used(text: str) -> tuple[list[str], list[str]]:
    report = fences_from_geojson(text)
    return [fence.id for fence in report.fences], [message.split(":")[0] for message in report.refused]


@pytest.mark.parametrize(
    ("text", "ids", "places"),
    [
        (collection(A, "null", B), ["A", "B"], ["feature 2"]),
        (collection(A, "7", '"x"', "[]", "true", "{}", B), ["A", "B"], [f"feature {n}" for n in range(2, 7)]),
        (f"\x1e{A}\n\x1e{B}\n", ["A", "B"], []),
        (collection(A) + collection(B), ["A", "B"], []),
        (collection(A, A, B), ["A", "B"], ["feature 2"]),
        (collection(feature("A", features=[1, {"type": "Feature"}]), B), ["A", "B"], []),
        ('{"features": [' + A + '], "x": {"features": []}, "type": "FeatureCollection"}', ["A"], []),
        (collection(A, feature("\ud800"), feature("x" * 300), feature("*"), B), ["A", "B"], [
            "feature 2", "feature 3", "feature 4"
        ]),
        (collection(A, feature("B", priority=10**400), feature("C", speed_limit_mps=10**400)), ["A"], [
            "feature 2", "feature 3"
        ]),
        (collection(A, collection(B)), ["A"], ["feature 2"]),
        (f"[{A}, null, {B}]", ["A", "B"], ["feature 2"]),
        (f"[{A}, [{B}], {C}]", ["A", "C"], ["feature 2"]),
        # what is not JSON is named, and nothing behind it is read
        (f"{A}\nxyz\n{B}", ["A"], ["feature 2"]),
        (collection(A) + "\n]", ["A"], ["feature 2"]),
        (collection(A, B)[:-1], [], ["feature 1"]),
        (collection(A + " " + B), [], ["feature 1"]),
        (collection(A, "[" * 100_000, B), [], ["feature 1"]),
        (collection(A, B.replace("0, 0", "1" * 400 + ", 0", 1), C), ["A", "C"], ["feature 2"]),
        (collection(A, B.replace("0, 0", "1" * 5000 + ", 0", 1), C), [], ["feature 1"]),
        (collection(A, B.replace("0, 0", "NaN, 0", 1), C), [], ["feature 1"]),
        (collection(A, B.replace('"id"', '"id": "D", "id"'), C), [], ["feature 1"]),
    ],
)  # fmt: skip
def test_what_stands_between_features_hides_none_and_is_named(text: str, ids: list[str], places: list[str]) -> None:
    assert used(text) == (ids, places)


@given(st.lists(st.sampled_from(["A", "B", "C", "A", 7]), min_size=1, max_size=5), st.data())
def test_wherever_features_one_on_a_line_are_cut_those_before_are_used_and_the_cut_is_named(
    names: list[object], data: st.DataObject
) -> None:
    lines = [feature(name, n=at) + "\n" for at, name in enumerate(names)]
    text = "".join(lines)
    whole, refused = used(text)
    assert len(whole) + len(refused) == len(names)
    cut = data.draw(st.integers(1, len(text) - 1))
    some, torn = used(text[:cut])
    assert some == whole[: len(some)]
    assert len(some) + len(torn) == text[:cut].rstrip().count("\n") + 1


@settings(max_examples=examples(300))
@given(st.text() | st.recursive(st.none() | st.floats() | st.text(max_size=3), lambda inner: st.lists(inner) |
       st.dictionaries(st.sampled_from(["type", "features", "properties", "geometry", "id", "coordinates", "weekly"]),
                       inner)).map(json.dumps), st.integers(0, 3))  # fmt: skip
def test_any_text_is_read_and_the_feature_before_it_is_used(text: str, breaks: int) -> None:
    ids, _ = used(A + "\n" * breaks + text)
    assert "A" in ids


@settings(max_examples=examples(300))
@given(st.binary(max_size=30), st.integers(0, len(collection(A, B, C))))
def test_bytes_put_anywhere_make_no_traceback_and_no_silence(noise: bytes, at: int) -> None:
    text = collection(A, B, C).encode()
    ids, places = used((text[:at] + noise + text[at:]).decode(errors="surrogateescape"))
    assert len(ids) == 3 or places


@pytest.mark.parametrize(
    "coordinates",
    [
        ["00", "01", "11", "10", "00"],
        [[["0", "0"], ["1", "0"], ["1", "1"], ["0", "0"]]],
        [[[True, False], [True, True], [False, True], [True, False]]],
        [[{"12": 1}, {"12": 2}, {"12": 3}, {"12": 1}]],
        [[[0, 0], [1, 0], [1, 1, "high"], [0, 0]]],
        [[[0, 0], [1, 0], [1], [0, 0]]],
        [{"0": [0, 0]}],
    ],
)
def test_a_position_is_an_array_of_json_numbers(coordinates: object) -> None:
    lone = {"type": "Feature", "properties": {"id": "B", "radius_m": 10}}
    shapes = [{"type": "Polygon", "coordinates": coordinates}, {"type": "Point", "coordinates": "52"}]
    for geometry in shapes:
        assert used(collection(A, json.dumps(lone | {"geometry": geometry}))) == (["A"], ["feature 2"])


@pytest.mark.parametrize(
    ("head", "named"),
    [
        ('"type": "FeatureCollection", ', False),
        ("", False),  # whatever it is, all that is in it is used
        ('"type": "GeometryCollection", ', True),
        ('"type": "Feature", ', True),
        ('"type": null, ', True),
        ('"type": "featurecollection", ', True),
    ],
)
def test_what_holds_features_and_is_of_another_type_than_a_collection_is_named(head: str, named: bool) -> None:
    ids, places = used(f'{{{head}"of": 1, "features": [{B}]}}')
    assert (ids, len(places)) == (([], 1) if named else (["B"], 0))


NEIGHBOUR = {
    "type": "Feature",
    "properties": {"id": "neighbour"},
    "geometry": {"type": "Polygon", "coordinates": [[[0, 0], [1, 0], [1, 1], [0, 0]]]},
}


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
