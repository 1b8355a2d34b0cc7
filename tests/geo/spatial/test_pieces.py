"""Drawn examples of what splitting does."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
from geographiclib.geodesic import Geodesic
from shapely import Polygon, box

from geo.spatial import (
    OUTSIDE,
    Activity,
    Fence,
    FenceSet,
    Fixes,
    ZoneSet,
    fences_from_geojson,
    find_events,
    pieces_by_fence,
    use_by_fence,
)
from tests.geo.spatial.worlds import START_MS, every_fix, fences, joined, line


def stays(zones: ZoneSet, fixes: Fixes) -> list[tuple[str, float, bool]]:
    """(zone, seconds, entry) of each piece."""
    pieces = zones.split(every_fix(fixes))
    names = [*zones.names, "outside"]
    return [
        (names[z], round(ms / 1000, 6), bool(e)) for z, ms, e in zip(pieces.zone, pieces.ms, pieces.entry, strict=True)
    ]


def test_a_vehicle_that_jumps_over_a_small_fence_was_in_it() -> None:
    #  fix ----|fence|---- fix
    zones = ZoneSet(fences(("toll", box(0.4, -1, 0.6, 1))))
    assert stays(zones, line([(0, 0), (1, 0)])) == [("outside", 4, False), ("toll", 2, True), ("outside", 4, False)]


def test_a_hole_is_outside_and_coming_out_of_it_is_an_entry() -> None:
    ring = Polygon(box(1, -1, 5, 1).exterior.coords, [box(2, -0.5, 4, 0.5).exterior.coords])
    assert stays(ZoneSet(fences(("ring", ring))), line([(0, 0), (6, 0)], 60_000)) == [
        ("outside", 10, False),
        ("ring", 10, True),
        ("outside", 20, False),
        ("ring", 10, True),
        ("outside", 10, False),
    ]


def test_a_track_that_begins_inside_makes_no_entry_nor_does_one_that_goes_on_after_a_gap() -> None:
    zones = ZoneSet(fences(("a", box(0, 0, 1, 1))))
    inside = line([(0.2, 0.5), (0.4, 0.5)])
    later = Fixes(device=[0, 0], t_ms=inside.t_ms + 400_000, lat=[0.5, 0.5], lon=[0.6, 0.8])
    pieces = zones.split(every_fix(joined([inside, later])))
    assert pieces.entry.tolist() == [False, False]
    assert pieces.ms.tolist() == [10_000, 10_000]


def test_a_gap_of_exactly_the_limit_is_no_break() -> None:
    fixes = Fixes(device=[0, 0, 0], t_ms=[0, 300_000, 600_001], lat=[0, 0, 0], lon=[0, 0.01, 0.02])
    tracks = every_fix(fixes)
    assert tracks.linked.tolist() == [False, True, False]
    assert tracks.gap_breaks == 1
    assert [part.tolist() for part in tracks.unknown()] == [[0], [300_000], [600_001]]


def test_the_highest_priority_wins_then_the_smallest_id() -> None:
    zones = ZoneSet([Fence("b", box(0, -1, 4, 1)), Fence("a", box(1, -1, 5, 1)), Fence("top", box(2, -1, 3, 1), 7)])
    assert [name for name, _, _ in stays(zones, line([(-1, 0), (6, 0)]))] == [
        "outside",
        "b",
        "a",
        "top",
        "a",
        "outside",
    ]
    assert zones.names[zones.zone_at(np.array([2.5]), np.array([0.0]), np.array([0]))[0]] == "top"


def test_a_shared_border_is_counted_once_and_belongs_to_the_inside() -> None:
    zones = ZoneSet(fences(("a", box(0, 0, 1, 1)), ("b", box(1, 0, 2, 1))))
    along = line([(1, 0), (1, 1)])
    assert stays(zones, along) == [("a", 10, False)]
    use = use_by_fence(every_fix(along), FenceSet(zones.fences))
    assert use.ms.tolist() == [10_000, 10_000]
    slanted = ZoneSet(fences(("s", Polygon([(0, 0), (3, 1), (3, 3), (0, 2)]))))
    assert stays(slanted, line([(-3, -1), (6, 2)])) == [
        ("outside", 3.333333, False),
        ("s", 3.333333, True),
        ("outside", 3.333333, False),
    ]


def test_a_fix_on_the_border_enters_once_whichever_segment_is_looked_at() -> None:
    zones = ZoneSet(fences(("a", box(1, -1, 2, 1))))
    assert stays(zones, line([(0, 0), (1, 0), (1.5, 0)])) == [("outside", 10, False), ("a", 0, True), ("a", 10, False)]
    assert sum(entry for _, _, entry in stays(zones, line([(0, 0), (1, 0), (1, 0.5), (0, 0)]))) == 1


def test_a_far_fence_that_switches_at_the_moment_of_an_entry_takes_nothing_from_it() -> None:
    toll, way = Fence("toll", box(0.5, -1, 0.75, 1)), line([(0, 0), (1, 0)])
    for moments in ([(None, START_MS + 5_000)], [(START_MS + 5_000, START_MS + 7_500)]):
        zones = ZoneSet([toll, Fence("far", box(40, 40, 41, 41), 9, active=Activity(moments))])
        assert stays(zones, way) == [("outside", 5, False), ("toll", 2.5, True), ("outside", 2.5, False)]
        assert use_by_fence(every_fix(way), FenceSet(zones.fences)).entries.tolist() == [1]
        assert [event.kind for event in find_events(every_fix(way), FenceSet(zones.fences))] == ["enter", "exit"]
    # its own switch at the border is the switch: it comes into force, or goes, around the vehicle
    for moment in ((START_MS + 5_000, None), (None, START_MS + 7_500)):
        own = FenceSet([Fence("toll", toll.shape, active=Activity([moment]))])
        assert use_by_fence(every_fix(way), own).ms.tolist() == [2_500]
        kinds = [event.kind for event in find_events(every_fix(way), own)]
        assert kinds == (["exit"] if moment[0] else ["enter"])


def test_a_zone_that_is_entered_as_the_one_above_it_ends_is_entered_and_one_that_was_there_is_not() -> None:
    way, over = line([(0, 0), (1, 0)]), Activity([(None, START_MS + 5_000)])
    above = Fence("above", box(-1, -1, 2, 1), 9, active=over)
    met = ZoneSet([Fence("toll", box(0.5, -1, 2, 1)), above])
    assert stays(met, way) == [("above", 5, False), ("toll", 5, True)]
    assert use_by_fence(every_fix(way), FenceSet(met.fences)).entries.tolist() == [0, 1]
    there = ZoneSet([Fence("toll", box(0.25, -1, 2, 1)), above])
    assert stays(there, way) == [("above", 5, False), ("toll", 5, False)]


def test_borders_each_within_the_resolution_of_the_next_are_one_only_as_far_as_the_resolution() -> None:
    # 40 fences that begin 0.8e-12 degrees after one another, in one step of a vehicle
    starts = [0.5 + 0.8e-12 * at for at in range(40)]
    zones = FenceSet(fences(*((f"f{at:02}", box(start, -1, 2, 1)) for at, start in enumerate(starts))))
    pieces = pieces_by_fence(every_fix(line([(0, 0), (1, 0)])), zones)
    assert np.abs(pieces.start - starts).max() <= 1.01e-12


def test_a_parked_vehicle_stays_where_it_is() -> None:
    zones = ZoneSet(fences(("a", box(0, 0, 1, 1))))
    assert stays(zones, line([(0.5, 0.5)] * 3)) == [("a", 10, False)] * 2
    assert stays(zones, line([(1.0, 0.5)] * 2)) == [("a", 10, False)]


def test_the_length_of_a_piece_is_the_geodesic_between_its_ends() -> None:
    zones = ZoneSet(fences(("a", box(-2.95, 53, -2.9, 54))))
    pieces = zones.split(every_fix(line([(-3.0, 53.40), (-2.85, 53.49)])))
    at = [(-3.0, 53.40), (-2.95, 53.43), (-2.9, 53.46), (-2.85, 53.49)]
    expected = [Geodesic.WGS84.Inverse(p[1], p[0], q[1], q[0])["s12"] for p, q in pairwise(at)]
    np.testing.assert_allclose(pieces.metres, expected, rtol=0, atol=1e-6)


def test_over_the_antimeridian_a_segment_takes_the_short_way() -> None:
    #  178 ... 179 [180|-180] -179 ... -178
    crossing = {"type": "Polygon", "coordinates": [[[179, -1], [-179, -1], [-179, 1], [179, 1], [179, -1]]]}
    text = json.dumps({"type": "Feature", "properties": {"id": "date line"}, "geometry": crossing})
    zones = ZoneSet(fences_from_geojson(text).fences)
    assert stays(zones, line([(178, 0), (-178, 0)], 40_000)) == [
        ("outside", 10, False),
        ("date line", 20, True),
        ("outside", 10, False),
    ]
    assert stays(zones, line([(-179.5, 0), (179.5, 0)])) == [("date line", 10, False)]
    assert stays(zones, line([(180, -2), (180, 2)], 40_000)) == [
        ("outside", 10, False),
        ("date line", 20, True),
        ("outside", 10, False),
    ]


def test_a_border_on_the_antimeridian_is_a_border_by_both_of_its_names() -> None:
    zones = ZoneSet(fences(("west of it", box(170, -1, 180, 1))))
    lon, lat = np.array([180.0, -180.0, -179.9]), np.zeros(3)
    assert zones.zone_at(lon, lat, np.zeros(3)).tolist() == [0, 0, OUTSIDE]


def test_a_ring_around_a_pole_holds_the_pole() -> None:
    ring = [[lon, -60 - lon % 7] for lon in range(-180, 180, 10)]
    shape = {"type": "Polygon", "coordinates": [[*ring, ring[0]]]}
    text = json.dumps({"type": "Feature", "properties": {"id": "antarctica"}, "geometry": shape})
    zones = ZoneSet(fences_from_geojson(text).fences)
    lon, lat = np.array([0.0, 123.0, -180.0, 10.0]), np.array([-90.0, -85.0, -70.0, 0.0])
    assert zones.zone_at(lon, lat, np.zeros(4)).tolist() == [0, 0, 0, OUTSIDE]


def test_a_fence_counts_while_it_is_in_force_and_coming_into_force_is_no_entry() -> None:
    shape = box(0, -1, 10, 1)
    noon = Activity([(START_MS + 2_000, START_MS + 8_000)])
    zones = ZoneSet([Fence("a", shape, active=noon)])
    assert stays(zones, line([(1, 0), (2, 0)])) == [("outside", 2, False), ("a", 6, False), ("outside", 2, False)]
    at_fix = ZoneSet([Fence("a", shape, active=Activity([(START_MS + 10_000, None)]))])
    assert stays(at_fix, line([(1, 0), (2, 0), (3, 0)])) == [("outside", 10, False), ("a", 10, False)]


def test_a_new_version_of_a_fence_takes_over_at_its_moment() -> None:
    change = START_MS + 5_000
    old = Fence("a", box(0, -1, 1, 1), active=Activity([(0, None)]))
    new = Fence("a", box(0, -1, 3, 1), active=Activity([(change, None)]))
    zones = ZoneSet([new, old])
    assert zones.names == ("a",)
    assert stays(zones, line([(0, 0), (4, 0)])) == [
        ("a", 2.5, False),
        ("outside", 2.5, False),
        ("a", 2.5, False),
        ("outside", 2.5, False),
    ]


@pytest.mark.parametrize("within", [True, False])
def test_no_fences_and_no_fixes_are_no_error(within: bool) -> None:
    zones = ZoneSet(fences(("a", box(0, 0, 1, 1))) if within else [])
    nothing = Fixes(device=[], t_ms=[], lat=[], lon=[])
    assert len(zones.split(every_fix(nothing))) == 0
    assert len(use_by_fence(every_fix(nothing), FenceSet(zones.fences)).device) == 0
    assert len(zones.split(every_fix(line([(5, 5)])))) == 0
    assert len(zones.split(every_fix(line([(5, 5), (6, 6)])))) == 1


def test_steps_of_next_to_no_length_are_steps() -> None:
    # the smallest doubles: a resolution in fractions of such a step is more than any double
    zones = ZoneSet(fences(("a", box(-1, -1, 1, 1))))
    found = stays(zones, line([(0.0, 0.0), (5e-324, 0.0), (5e-324, 5e-324)]))
    assert found == [("a", 10, False), ("a", 10, False)]
