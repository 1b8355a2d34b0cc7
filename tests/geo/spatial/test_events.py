"""Visits with hysteresis, and events."""

import contextlib
from collections.abc import Mapping

import numpy as np
import shapely
from hypothesis import example, given
from hypothesis import strategies as st
from shapely import Polygon, box

from geo.spatial import (
    Activity,
    EventSettings,
    Fence,
    FenceError,
    FenceSet,
    Fixes,
    GeofenceEvent,
    Revision,
    VisitSettings,
    fact_id,
    find_events,
    find_visits,
    in_force,
    new_revisions,
    use_by_fence,
)
from geo.spatial.depth import border_distance_m
from geo.spatial.event_ids import latest_by_id
from geo.spatial.fences import Outlines
from geo.spatial.rings import world_polygon
from tests.geo.spatial.worlds import START_MS, every_fix, fence_lists, fences, identified, joined, line, taken, walks

DEPOT = FenceSet(fences(("depot", box(10.0, 50.0, 10.02, 50.02))))


def flapping(noise_m: float = 8.0) -> Fixes:
    """Ten minutes parked on the depot's western border, with the noise of a receiver; then in and out at the east."""
    rng = np.random.default_rng(4)
    noise = rng.normal(0, noise_m / 71_500, 600)
    lon = np.concatenate([np.linspace(9.99, 10.0, 50), 10.0 + noise, np.linspace(10.0, 10.03, 150)])
    n = len(lon)
    return Fixes(device=np.zeros(n), t_ms=START_MS + np.arange(n) * 1000, lat=np.full(n, 50.01), lon=lon)


def kinds(events: list[GeofenceEvent]) -> list[str]:
    return [event.kind for event in events]


def test_jitter_at_a_border_makes_no_events_while_metering_stays_exact() -> None:
    tracks = every_fix(flapping())
    raw = find_events(tracks, DEPOT)
    calm = find_events(tracks, DEPOT, settings=EventSettings(buffer_m=50))
    assert len(raw) > 100
    assert kinds(calm) == ["enter", "exit"]
    # the entry is the crossing after which it stayed in; the exit is exact
    entered = START_MS + 650_000
    assert abs(calm[0].t_ms - entered) < 5000
    assert calm[1].t_ms == next(event.t_ms for event in reversed(raw) if event.kind == "exit")
    assert use_by_fence(tracks, DEPOT).entries.sum() == kinds(raw).count("enter")


def test_a_fix_that_reports_its_accuracy_is_no_proof_within_it() -> None:
    fixes = flapping()
    doubtful = Fixes(
        device=fixes.device, t_ms=fixes.t_ms, lat=fixes.lat, lon=fixes.lon, accuracy_m=np.full(len(fixes), 50.0)
    )
    tracks = every_fix(doubtful)
    assert kinds(find_events(tracks, DEPOT)) == ["enter", "exit"]
    assert len(find_events(tracks, DEPOT, settings=EventSettings(use_accuracy=False))) > 100


def test_a_break_ends_a_visit_without_an_exit() -> None:
    one, later = line([(9.99, 50.01), (10.01, 50.01)]), line([(10.012, 50.01), (10.014, 50.01)])
    again = Fixes(device=later.device, t_ms=later.t_ms + 1_000_000, lat=later.lat, lon=later.lon)
    assert kinds(find_events(every_fix(joined([one, again])), DEPOT)) == ["enter"]
    assert len(find_visits(every_fix(joined([one, again])), DEPOT)) == 2


def test_a_long_visit_is_a_dwell_at_its_time() -> None:
    fixes = line([(9.99, 50.01), (10.01, 50.01), (10.01, 50.01), (10.03, 50.01)], 60_000)
    events = find_events(every_fix(fixes), DEPOT, settings=EventSettings(dwell_s=60))
    assert [(event.kind, (event.t_ms - START_MS) / 1000) for event in events] == [
        ("enter", 30),
        ("dwell", 90),
        ("exit", 150),
    ]


def test_speeding_is_one_event_for_each_stretch_with_its_highest_speed() -> None:
    zone = FenceSet([Fence("school", box(10.0, 50.0, 10.02, 50.02), speed_limit_mps=8.3)])
    fixes = line([(9.998 + step, 50.01) for step in (0, 0.002, 0.004, 0.006, 0.0065, 0.009)])
    speeding = [event for event in find_events(every_fix(fixes), zone) if event.kind == "speeding"]
    assert [(event.t_ms - START_MS) // 1000 for event in speeding] == [10, 40]
    reported = Fixes(
        device=fixes.device, t_ms=fixes.t_ms, lat=fixes.lat, lon=fixes.lon, speed_mps=[0, 0, 9.0, 12.5, np.nan, 8.3]
    )
    (one,) = [event for event in find_events(every_fix(reported), zone) if event.kind == "speeding"]
    assert one.value == 12.5


@given(walks(), fence_lists(), st.floats(0, 3000), st.floats(0, 400))
def test_visits_of_a_device_to_a_fence_alternate_and_do_not_overlap(
    fixes: Fixes, made: list[Fence], buffer_m: float, stay_s: float
) -> None:
    visits = find_visits(every_fix(fixes), FenceSet(made), VisitSettings(buffer_m=buffer_m, min_stay_s=stay_s))
    same = (visits.device[1:] == visits.device[:-1]) & (visits.fence[1:] == visits.fence[:-1])
    assert (visits.end_ms >= visits.start_ms).all()
    assert (visits.start_ms[1:] >= visits.end_ms[:-1])[same].all()


def test_the_cut_at_180_degrees_is_no_border_and_the_border_beyond_it_is_as_near_as_it_is() -> None:
    across = world_polygon([[np.array([(179.9, -1), (-179.9, -1), (-179.9, 1), (179.9, 1), (179.9, -1)])]])
    ends = box(179.9, -1, 180, 1)
    degree_m = 111_319.49
    for lon, lat, expected in (
        (179.999, 0.0, (0.099, 0.099)),
        (-179.92, 0.0, (0.02, 0.18)),
        (179.96, 0.5, (0.06, 0.06)),
    ):
        outlines = Outlines.of([across, ends])
        away = border_distance_m(outlines, np.arange(2), np.full(2, lon), np.full(2, lat))
        np.testing.assert_allclose(away / degree_m, expected, atol=1e-3 * 0.1)
    cap = world_polygon([[np.array([(-120.0, 80.0), (0.0, 80.0), (120.0, 80.0), (-120.0, 80.0)])]])
    places = np.array([180.0, 50.0]), np.array([80.5, 89.99])
    away = border_distance_m(Outlines.of([cap]), np.zeros(2, dtype=int), *places)
    np.testing.assert_allclose(away / 111_690, [0.5, 9.99], rtol=2e-3)


@given(st.lists(fence_lists(), min_size=1, max_size=3), st.sampled_from([0.0, 182.9, -177.1]), st.integers(0, 2000))
def test_a_limit_to_the_distance_from_a_border_leaves_what_is_nearer_as_it_is(
    several: list[list[Fence]], east: float, limit_m: int
) -> None:
    around = np.linspace(0, 2 * np.pi, 200)
    ring = np.column_stack([-2.95 + 0.04 * np.cos(around), 53.45 + 0.03 * np.sin(around)])
    rings = [[ring], *([shapely.get_coordinates(fence.shape)] for part in several for fence in part)]
    moved = [np.column_stack([np.mod(points[:, 0] + east + 180, 360) - 180, points[:, 1]]) for (points,) in rings]
    made = []
    for points in moved:
        with contextlib.suppress(FenceError):
            made.append(world_polygon([[points]]))
    outlines = Outlines.of(made)
    lon, lat = (at.ravel() for at in np.meshgrid(np.linspace(-3.05, -2.85, 9), np.linspace(53.35, 53.55, 9)))
    lon = np.mod(np.tile(lon, outlines.count) + east + 180, 360) - 180
    fence, lat = np.repeat(np.arange(outlines.count), 81), np.tile(lat, outlines.count)
    whole = border_distance_m(outlines, fence, lon, lat)
    near = border_distance_m(outlines, fence, lon, lat, np.full(len(fence), float(limit_m)))
    assert np.array_equal(near[whole <= limit_m], whole[whole <= limit_m])
    assert (near[whole > limit_m] > limit_m).all()


METRE = 1 / 111_320  # in degrees, at the equator
AROUND = box(12.0, -1.0, 14.0, 1.0)


def version(
    shape: Polygon, from_s: float | None = None, *, limit: float | None = None, until_s: float | None = None
) -> Fence:
    begin, end = (None if s is None else START_MS + round(s * 1000) for s in (from_s, until_s))
    return Fence("a", shape, active=Activity([(begin, end)]), effective_from_ms=begin, speed_limit_mps=limit)


def events_of(
    versions: list[Fence], at_s: list[int], lon: list[float], **settings: float
) -> list[tuple[str, float, float]]:
    fixes = Fixes(device=[0] * len(at_s), t_ms=[START_MS + 1000 * s for s in at_s], lat=[0.0] * len(at_s), lon=lon)
    events: list[GeofenceEvent] = find_events(every_fix(fixes), FenceSet(versions), settings=EventSettings(**settings))
    return [(event.kind, (event.t_ms - START_MS) / 1000, event.value) for event in events]


def parked(versions: list[Fence]) -> list[tuple[str, float, float]]:
    """A minute's drive to a place, where it stands for twenty minutes; 10 m are doubted."""
    return events_of(versions, list(range(0, 1201, 60)), [12.998, *[13.0] * 20], buffer_m=10.0)


def fast(versions: list[Fence], at_s: list[int], **settings: float) -> list[tuple[str, float, float]]:
    """20 m/s to the east, within all versions."""
    return events_of(versions, at_s, [13.0 + 20 * s * METRE for s in at_s], **settings)


def test_where_no_version_is_in_force_a_vehicle_is_outside_for_sure() -> None:
    # it stands 5 m from the border when the fence goes out of force
    fixes = Fixes(
        device=[0] * 3, t_ms=[START_MS, START_MS + 60_000, START_MS + 300_000], lat=[0.0] * 3, lon=[12.99, 13.0, 13.0]
    )
    fence = version(box(12.995, -0.01, 13.0 + 5 * METRE, 0.01), until_s=200)
    visits = find_visits(every_fix(fixes), FenceSet([fence]), EventSettings(buffer_m=10.0))
    np.testing.assert_allclose(visits.end_ms - START_MS, [200_000])


def test_speeding_is_judged_by_the_limit_in_force_wherever_the_fixes_are() -> None:
    lower = [version(AROUND, limit=100.0), version(AROUND, 100, limit=5.0)]
    for at_s in ([0, 200], [0, 200, 300], [0, 99, 100, 101, 200], [0, 100, 200]):
        assert [(kind, at) for kind, at, _ in fast(lower, at_s)] == [("speeding", 100.0)]


def test_speeding_lasts_as_long_as_it_is_over_the_limits_in_force() -> None:
    raised = [version(AROUND, limit=5.0), version(AROUND, 100, limit=100.0)]
    kept = [version(AROUND, limit=5.0), version(AROUND, 100, limit=10.0)]
    for at_s in ([0, 200], [0, 100, 200], [0, 50, 150, 200]):
        assert fast(raised, at_s, min_stay_s=150) == []
        assert [(kind, at) for kind, at, _ in fast(raised, at_s, min_stay_s=99)] == [("speeding", 0.0)]
        assert [(kind, at) for kind, at, _ in fast(kept, at_s, min_stay_s=150)] == [("speeding", 0.0)]


states = st.dictionaries(st.sampled_from("abcde"), st.integers(0, 3))
facts = st.lists(st.text() | st.integers(), max_size=4)


@given(st.lists(states, max_size=6), st.randoms(use_true_random=False))
def test_whatever_was_published_before_the_state_now_is_in_force_and_again_publishes_nothing(
    history: list[dict[str, int]], random: object
) -> None:
    known: list[Revision[int]] = []
    for now in history:
        random.shuffle(known)  # type: ignore[attr-defined]
        known += new_revisions(known, now)
        assert in_force(known) == now
        assert new_revisions(known, now) == []
    numbers = {name: sorted(one.revision for one in known if one.id == name) for name in {one.id for one in known}}
    assert all(found == list(range(len(found))) for found in numbers.values()), "each revision follows on the last"


@given(states, states)
def test_what_is_the_same_is_not_published_and_what_is_gone_keeps_what_it_said(
    before: Mapping[str, int], now: Mapping[str, int]
) -> None:
    known = new_revisions([], before)
    news = latest_by_id(new_revisions(known, now))
    assert news.keys() == {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}
    gone = {name: one.content for name, one in news.items() if one.retracted}
    assert gone == {name: before[name] for name in before.keys() - now.keys()}


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 5)), unique=True), st.randoms())
def test_the_highest_revision_holds_in_whatever_order_they_come(numbers: list[tuple[str, int]], random: object) -> None:
    known = [Revision(name, number, name * number) for name, number in numbers]
    shuffled = list(known)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert latest_by_id(shuffled) == latest_by_id(known)
    highest = {name: max(number for other, number in numbers if other == name) for name, _ in numbers}
    assert {name: one.revision for name, one in latest_by_id(known).items()} == highest


@given(facts, facts)
@example(["a", "b"], ["a|b"])
@example(["a\nb"], ["a", "b"])
@example(["1"], [1])
@example(["\ud800"], [])
def test_other_facts_have_another_id_and_the_same_have_the_same(one: list[str | int], other: list[str | int]) -> None:
    assert (fact_id(*one) == fact_id(*other)) == (one == other)
    assert len(fact_id(*one)) == 24


def test_an_id_is_the_same_in_every_version_of_the_program() -> None:
    assert fact_id("event", "eu-0001", 7) == "80edce090adad21779a5d114"


@given(walks(devices=2), fence_lists(), st.randoms(use_true_random=False), st.integers(1, 5))
def test_revised_as_fixes_arrive_in_any_order_ids_and_events_in_force_are_those_of_a_batch(
    fixes: Fixes, made: list[Fence], random: object, batches: int
) -> None:
    _, keep = np.unique(np.stack([fixes.device, fixes.t_ms]), axis=1, return_index=True)
    fixes = taken(fixes, np.sort(keep))
    order = np.arange(len(fixes))
    random.shuffle(order)  # type: ignore[attr-defined]
    every, known = FenceSet(made), list[Revision[GeofenceEvent]]()
    for part in range(1, batches + 1):
        tracks = every_fix(taken(fixes, np.sort(order[: len(order) * part // batches])))
        known += new_revisions(known, identified(tracks, find_events(tracks, every)))
    tracks = every_fix(fixes)
    batch = identified(tracks, find_events(tracks, every))
    assert list(in_force(known).items()) == sorted(batch.items())
