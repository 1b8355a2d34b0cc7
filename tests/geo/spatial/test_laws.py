"""Laws of splitting tracks over zones, whatever the fences and the tracks."""

import json
from itertools import pairwise

import numpy as np
import pytest
from geographiclib.geodesic import Geodesic
from hypothesis import given
from hypothesis import strategies as st
from shapely import Polygon, box

from geo.spatial import (
    OUTSIDE,
    Activity,
    Fence,
    FenceSet,
    Fixes,
    Pieces,
    Tracks,
    ZoneSet,
    fences_from_geojson,
    use_by_fence,
)
from tests.geo.spatial.worlds import START_MS, every_fix, fence_lists, fences, joined, line, taken, walks

# A long segment is no geodesic: its pieces may be longer than the whole, by L^2 tan^2(lat) / (24 R^2) of it
LONG = 3e-6


def sums(tracks: Tracks, pieces: Pieces, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    zone = np.where(pieces.zone == OUTSIDE, count, pieces.zone)
    return (
        np.bincount(zone, pieces.metres, count + 1),
        np.bincount(zone, pieces.ms, count + 1),
        np.bincount(zone, pieces.entry, count + 1),
    )


@given(walks(), fence_lists())
def test_the_zones_and_the_outside_make_up_the_track(fixes: Fixes, fences: list[Fence]) -> None:
    tracks, zones = every_fix(fixes), ZoneSet(fences)
    pieces = zones.split(tracks)
    end = tracks.segments()
    for row in end:
        mine = pieces.end_fix == tracks.row[row]
        whole_ms = fixes.t_ms[tracks.row[row]] - fixes.t_ms[tracks.row[row - 1]]
        assert pieces.ms[mine].sum() == pytest.approx(whole_ms, abs=1e-6)
        assert pieces.metres[mine].sum() == pytest.approx(tracks.metres[row], rel=LONG, abs=1e-6)
        assert pieces.start[mine][0] == 0.0
        assert pieces.end[mine][-1] == 1.0
        assert (pieces.start[mine][1:] == pieces.end[mine][:-1]).all()
        assert (pieces.zone[mine][1:] != pieces.zone[mine][:-1]).all()


@given(walks(), fence_lists(), st.data())
def test_it_does_not_matter_how_the_fixes_were_cut_into_batches(
    fixes: Fixes, fences: list[Fence], data: st.DataObject
) -> None:
    zones = ZoneSet(fences)
    whole = zones.split(every_fix(fixes))
    at = data.draw(st.integers(1, len(fixes) - 1))
    one = zones.split(every_fix(taken(fixes, np.arange(at))))
    # the fix before the cut comes along: it is the start of the first segment, and of equal times the first kept
    margin = int(np.searchsorted(fixes.t_ms[:at][fixes.device[:at] == fixes.device[at - 1]], fixes.t_ms[at - 1]))
    first = int(np.flatnonzero(fixes.device == fixes.device[at - 1])[0]) + margin
    other = zones.split(every_fix(taken(fixes, np.arange(first, len(fixes)))))
    again = np.flatnonzero(other.end_fix + first >= at)
    for name in ("zone", "metres", "ms", "entry", "start", "end"):
        both = np.concatenate([getattr(one, name), getattr(other, name)[again]])
        np.testing.assert_array_equal(both, getattr(whole, name))


@given(walks(), fence_lists())
def test_every_fence_on_its_own_is_a_zone_set_of_one(fixes: Fixes, fences: list[Fence]) -> None:
    tracks, every = every_fix(fixes), FenceSet(fences)
    use = use_by_fence(tracks, every)
    for number, name in enumerate(every.names):
        alone = ZoneSet([one for one in fences if one.id == name])
        metres, ms, entries = sums(tracks, alone.split(tracks), 1)
        mine = use.fence == number
        assert use.metres[mine].sum() == pytest.approx(metres[0], rel=LONG, abs=1e-6)
        assert use.ms[mine].sum() == pytest.approx(ms[0], abs=1e-3)
        assert use.entries[mine].sum() == entries[0]


def stays(zones: ZoneSet, fixes: Fixes) -> list[tuple[str, float, bool]]:
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
