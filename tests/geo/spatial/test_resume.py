"""After a fault in GeoJSON reading goes on at the next feature, in whatever order its members stand."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from geo.spatial import fences_from_geojson
from geo.spatial.features import MAX_SYNTAX_FAULTS, read_features
from tests.examples import examples
from tests.geo.spatial.test_features import RING

FAULTS = {
    "NaN": ('"N"', "NaN"),
    "no comma": (', "note"', ' "note"'),
    "no colon": ('"note": ', '"note" '),
    "a comma too many": ('"N"', '"N",'),
    "no quote": ('"note"', '"note'),
    "no quote before": ('"note"', 'note"'),
    "a quote too many": ('"N"', '"N""'),
    "no brace": ('"N"}', '"N"'),
    "a brace too many": ('"N"}', '"N"}}'),
    "no bracket": ("[0, 0]]]", "[0, 0]"),
    "one bracket too few": ("[0, 0]]]", "[0, 0]]"),
    "a bracket too many": ("[0, 0]]]", "[0, 0]]]]"),
    "a word": ('"N"', "xyz"),
}
ORDERS = [
    ("type", "properties", "geometry"),
    ("id", "type", "properties", "geometry"),
    ("geometry", "properties", "type"),
]
LAYOUTS = {
    "collection": ('{"type": "FeatureCollection", "features": [', ", ", "]}"),
    "lines of a collection": ('{"features": [\n', ",\n", '\n], "type": "FeatureCollection"}\n'),
    "array": ("[", ",", "]"),
    "lines": ("", "\n", "\n"),
    "side by side": ("", "", ""),
    "collections": ('{"of": {"a": 1}, "features": [', '], "x": [1]}{"type": "FeatureCollection", "features": [', "]}"),
}


def feature(name: str, order: tuple[str, ...], **more: object) -> str:
    members = {
        "type": "Feature",
        "id": name,
        "properties": {"id": name, "tags": [{"a": 1}], **more, "note": "N"},
        "geometry": {"type": "Polygon", "coordinates": [RING]},
    }
    return json.dumps({key: members[key] for key in order})


def read(text: str) -> tuple[list[str], tuple[str, ...]]:
    report = fences_from_geojson(text)
    return [fence.id for fence in report.fences], report.refused


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("order", ORDERS, ids=" ".join)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_one_feature_costs_no_other(fault: str, order: tuple[str, ...], layout: str) -> None:
    head, between, tail = LAYOUTS[layout]
    old, new = FAULTS[fault]
    for faulty in ((0,), (2,), (1, 3), (5,)):
        parts = [feature(name, order) for name in "ABCDEF"]
        for at in faulty:
            assert parts[at].count(old) == 1
            parts[at] = parts[at].replace(old, new)
        ids, refused = read(head + between.join(parts) + tail)
        assert [name for name in ids if name not in {"ABCDEF"[at] for at in faulty}] == [
            name for at, name in enumerate("ABCDEF") if at not in faulty
        ]
        assert len(refused) >= len(faulty)


@pytest.mark.parametrize("layout", ["collection", "array", "lines"])
@pytest.mark.parametrize("order", ORDERS, ids=" ".join)
@pytest.mark.parametrize("fault", ["NaN", "a comma too many", "a word", "no colon"])
def test_what_is_inside_of_a_refused_feature_is_no_feature_in_any_order(
    fault: str, order: tuple[str, ...], layout: str
) -> None:
    head, between, tail = LAYOUTS[layout]
    inner = json.loads(feature("P", ("type", "properties", "geometry")))
    broken = feature("B", order, parent=inner, parents=[inner, [inner]])
    at = broken.rindex(FAULTS[fault][0])
    broken = broken[:at] + broken[at:].replace(*FAULTS[fault])
    ids, refused = read(head + between.join([feature("A", order), broken, feature("C", order)]) + tail)
    assert (ids, len(refused)) == (["A", "C"], 1)


def _costs_more_than_its_neighbours(
    layout: str, order: tuple[str, ...], places: Iterable[int], puts: list[str]
) -> list[str]:
    """The texts of which one character, lost ("") or put, costs another feature than those that it stands at."""
    head, between, tail = LAYOUTS[layout]
    parts = [feature(name, order) for name in "ABCDEF"]
    text = head + between.join(parts) + tail
    starts = list(itertools.accumulate((len(part) + len(between) for part in parts), initial=len(head)))
    bad = []
    for place in places:
        at = len(head) + place % (len(text) - len(head) - len(tail))
        near = {
            name
            for name, start in zip("ABCDEF", starts, strict=False)
            if start - len(between) <= at <= start + len(parts[0])
        }
        for put in puts:
            faulty = text[:at] + put + text[at + (put == "") :]
            ids, refused = read(faulty)
            if not (set("ABCDEF") - near <= set(ids) and (len(ids) == 6 or refused)):
                bad.append(faulty)
    return bad


PUTS = ["", *'{}[]",:x0']


@settings(max_examples=examples(200))
@given(st.sampled_from(sorted(LAYOUTS)), st.sampled_from(ORDERS), st.integers(0, 1200), st.sampled_from(PUTS))
@example("collection", ORDERS[0], 0, "[")
@example("side by side", ORDERS[2], 169, "")
def test_one_character_that_is_lost_or_put_costs_at_most_the_two_features_that_it_stands_at(
    layout: str, order: tuple[str, ...], at: int, put: str
) -> None:
    assert _costs_more_than_its_neighbours(layout, order, [at], [put]) == []


@pytest.mark.nightly
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("order", ORDERS, ids=" ".join)
def test_every_single_character_that_is_lost_or_put_costs_at_most_two_features(
    layout: str, order: tuple[str, ...]
) -> None:
    assert _costs_more_than_its_neighbours(layout, order, range(1200), PUTS) == []


@pytest.mark.parametrize("kind", ['"type": "Feature", ', "", '"type": "feature", ', '"type": ["FeatureCollection"], '])
def test_an_object_that_may_be_a_feature_and_holds_features_is_named_in_any_order(kind: str) -> None:
    inner = feature("B", ORDERS[0])
    one = feature("A", ORDERS[0]).replace('"type": "Feature", ', kind, 1)
    for text in (f'{one[:-1]}, "features": [{inner}]}}', f'{{"features": [{inner}], {one[1:]}'):
        ids, refused = read(text)
        assert ids == ["B"]
        assert "member 'features'" in refused[0]
        ids, refused = read(f"[{text}]")
        assert ids == []
        assert "member 'features'" in refused[0]


@pytest.mark.parametrize(
    ("head", "named"),
    [
        ('"type": "FeatureCollection", ', False),
        ("", False),  # whatever it is, all that is in it is used
        ('"type": "GeometryCollection", ', True),
        ('"type": null, ', True),
        ('"type": "featurecollection", ', True),
    ],
)
def test_what_holds_features_and_is_of_another_type_than_a_collection_is_named(head: str, named: bool) -> None:
    inner = feature("B", ORDERS[0])
    ids, refused = read(f'{{{head}"of": 1, "features": [{inner}]}}')
    assert ids == ["B"]
    assert len(refused) == named


@pytest.mark.parametrize(
    "part",
    ['{"type": "Feature", "x": }', "[", '"\\"', '{"a": [{"b": ', "]}", '{"id": "x" ', "x: [", '\\"', ",{", '"   '],
)
def test_the_time_to_go_on_is_linear_whatever_the_text_is(part: str) -> None:

    def cpu_s(times: int) -> float:
        begin = time.process_time()
        found = list(read_features("{" + part * times))
        assert len(found) <= MAX_SYNTAX_FAULTS + 1 or part == ",{"
        return time.process_time() - begin

    assert cpu_s(80_000) < 60 * max(cpu_s(8_000), 0.05)


def test_brackets_that_are_closed_by_others_cost_each_its_own_time() -> None:
    def cpu_s(times: int) -> float:
        begin = time.process_time()
        assert len(list(read_features('{"a":[' * times + "]" * times))) == 1
        return time.process_time() - begin

    # twenty times as many took four hundred times as long
    assert cpu_s(600_000) < 100 * max(cpu_s(30_000), 0.05)
