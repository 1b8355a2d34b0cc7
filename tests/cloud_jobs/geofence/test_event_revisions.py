"""Events are published once, corrected when late fixes say otherwise, and end the same in whatever order fixes came."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shapely.affinity import translate

from cloud_jobs.geofence.event_revisions import units_of
from geo.spatial import DayEvent, EventSettings, FenceSet, Fixes, GeofenceEvent, find_events, identified
from geo.spatial.event_ids import DAY_MS
from tests.cloud_jobs.geofence.centre import GeofenceCentre, GeofenceFix, latest, rules
from tests.geo.spatial.timed_world import TimedWorld, timed_world, tracks_of
from tests.geo.spatial.worlds import every_fix

NOON = 20_000 * DAY_MS + DAY_MS // 2
MINUTE = 60_000


def drive(start_ms: int, *places: tuple[float, float], step_ms: int = MINUTE, device: str = "d") -> list[GeofenceFix]:
    return [
        GeofenceFix(device, number, start_ms + number * step_ms, lat, lon)
        for number, (lat, lon) in enumerate(places, 1)
    ]


THROUGH = drive(NOON, (0.005, -0.005), (0.005, 0.005), (0.005, 0.012), (0.005, 0.018))


def kinds(centre: GeofenceCentre) -> list[str]:
    return [row[2] for row in centre.in_force()]


def test_a_drive_through_is_an_entry_an_exit_and_a_crossing_of_the_gate() -> None:
    centre = GeofenceCentre(rules(dwell_s=30.0))
    centre.take(THROUGH)
    assert [(row[2], row[3]) for row in centre.in_force()] == [
        ("enter", "square"),
        ("dwell", "square"),
        ("exit", "square"),
        ("forward", "gate"),
    ]
    entered = centre.in_force()[0][1] // 1000
    assert entered == NOON + MINUTE + MINUTE // 2


def test_a_late_fix_moves_the_entry_it_explains() -> None:
    centre = GeofenceCentre(rules(dwell_s=None))
    centre.take(THROUGH)
    (moved, value) = centre.take([GeofenceFix("d", 9, NOON + MINUTE + 1_000, 0.005, -0.001)])
    assert (moved["kind"], moved["revision"], moved["retracted"]) == ("enter", 1, False)
    assert (value["kind"], value["revision"]) == ("exit", 1)
    assert [row["revision"] for row in latest(centre.table) if row["kind"] == "forward"] == [0]


def test_a_late_fix_retracts_the_crossing_that_never_was() -> None:
    centre = GeofenceCentre(rules(dwell_s=None))
    centre.take(drive(NOON, (-0.001, -0.001), (-0.001, 0.0001), (0.001, -0.0001), (0.002, -0.001), step_ms=2 * MINUTE))
    before = kinds(centre)
    news = centre.take([GeofenceFix("d", 9, NOON + 5 * MINUTE, -0.001, -0.001)])
    assert len(before) <= 2
    assert all(row["revision"] == 1 and row["retracted"] for row in news)
    assert centre.in_force() == []


places = st.tuples(st.sampled_from([0.0, 0.002, 0.005, 0.0101, 0.012]), st.integers(-20, 20).map(lambda x: x / 1000))
steps = st.tuples(
    st.sampled_from([0, 1_000, 30_000, 120_000, 300_000, 300_001, 2 * 3_600_000]),
    places,
    st.sampled_from([None, 5.0, 60.0, 400.0]),
)


@st.composite
def worlds(draw: st.DrawFn) -> list[GeofenceFix]:
    """Two devices around midnight, with pauses, equal times, poor fixes and impossible jumps."""
    fixes: list[GeofenceFix] = []
    for device in ("a", "b"):
        t_ms = 20_001 * DAY_MS - draw(st.sampled_from([0, 600_000, 4 * 3_600_000, 13 * 3_600_000]))
        for seq, (wait, (lat, lon), accuracy) in enumerate(draw(st.lists(steps, max_size=20)), 1):
            t_ms += wait
            fixes.append(GeofenceFix(device, seq, t_ms, lat, lon, accuracy))
    return fixes


@given(worlds(), st.randoms(use_true_random=False), st.integers(1, 6))
def test_streaming_equals_batch(fixes: list[GeofenceFix], random: object, parts: int) -> None:
    asked = rules(dwell_s=200.0, buffer_m=30.0)
    batch, stream = GeofenceCentre(asked), GeofenceCentre(asked)
    batch.take(fixes)
    shuffled = list(fixes)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    for at in range(parts):
        stream.take(shuffled[at::parts])
    assert stream.in_force() == batch.in_force()
    ids = [(row["id"], row["revision"]) for row in stream.table]
    assert len(ids) == len(set(ids)), "an id and a revision name one row"


def test_a_visit_over_midnight_is_published_once_whichever_day_came_first() -> None:
    midnight = 20_001 * DAY_MS
    fixes = drive(midnight - 3 * MINUTE, *[(0.005, -0.005), *[(0.005, 0.005)] * 5, (0.005, 0.013)])
    whole, evening, morning = (GeofenceCentre(rules(dwell_s=None)) for _ in range(3))
    whole.take(fixes)
    before, after = [fix for fix in fixes if fix.t_ms < midnight], [fix for fix in fixes if fix.t_ms >= midnight]
    evening.take(before)
    evening.take(after)
    morning.take(after)
    morning.take(before)
    assert whole.in_force() == evening.in_force() == morning.in_force()
    assert [row[2:4] for row in whole.in_force()] == [("enter", "square"), ("exit", "square")]


def test_a_version_that_is_published_later_for_the_past_corrects_what_was_published() -> None:
    fixes = drive(NOON, *[(0.005, -0.005), *[(0.005, 0.005)] * 5, (0.005, 0.013)])
    old = rules(dwell_s=None)
    (square,) = old.fences.fences
    # two minutes after the entry the square was elsewhere: the vehicle is no longer in it
    moved = replace(square, shape=translate(square.shape, 1.0, 0), effective_from_ms=NOON + 4 * MINUTE)
    new = replace(old, fences=FenceSet([square, moved]))
    earlier, fresh = GeofenceCentre(old), GeofenceCentre(new)
    earlier.take(fixes)
    fresh.take(fixes)
    again = GeofenceCentre(new, table=list(earlier.table))
    again.take(fixes)
    assert earlier.in_force() != fresh.in_force() == again.in_force()
    assert [row[2:4] for row in fresh.in_force()] == [("enter", "square")]


def test_an_event_names_the_fix_that_ends_its_segment_and_a_late_one_before_the_crossing_makes_it_another() -> None:
    centre = GeofenceCentre(rules(dwell_s=None))
    centre.take(THROUGH)
    assert [(row["kind"], row["epoch"], row["seq"]) for row in centre.table] == [
        ("enter", 7, 2),
        ("exit", 7, 3),
        ("forward", 7, 4),
    ]
    entered = centre.table[0]
    # it is in the square already: the crossing was before it
    news = centre.take([GeofenceFix("d", 9, NOON + MINUTE + 40_000, 0.005, 0.001)])
    taken_back, made = (next(row for row in news if row["retracted"] is gone) for gone in (True, False))
    assert (taken_back["id"], taken_back["revision"]) == (entered["id"], 1)
    assert {name: taken_back[name] for name in ("time", "seq")} == {name: entered[name] for name in ("time", "seq")}
    assert (made["kind"], made["seq"], made["revision"]) == ("enter", 9, 0)
    assert made["id"] != entered["id"]


day_events = st.builds(
    DayEvent,
    st.integers(NOON, NOON + 3),
    st.sampled_from(["enter", "exit"]),
    st.sampled_from(["a", "b"]),
    st.sampled_from([0.0, 1.5]),
    st.sampled_from([7, 8]),
    st.integers(1, 3),
)


@given(st.lists(day_events, max_size=12), st.randoms(use_true_random=False))
def test_each_event_has_an_id_of_its_own_whatever_the_order_and_another_device_has_others(
    events: list[DayEvent], random: object
) -> None:
    found = identified("acme", "eu-0001", events)
    shuffled = list(events)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert list(identified("acme", "eu-0001", shuffled).items()) == list(found.items())
    assert sorted(found.values()) == sorted(events)
    for owner in (("acme", "eu-0002"), ("other", "eu-0001")):
        assert found.keys().isdisjoint(identified(*owner, events))


SETTINGS = EventSettings(buffer_m=1.0, min_stay_s=5.0, dwell_s=60.0)
REACH_MS = 12 * 3_600_000


def in_days(made: TimedWorld, fences: FenceSet, shift_ms: int) -> list[GeofenceEvent]:
    """The events, each day computed by itself with what is around it; `shift_ms`: where midnight is."""
    t_ms = np.array(made.t_ms)
    lat, lon = (np.array([spot[at] for spot in made.track]) for at in (1, 0))
    asked = np.ones(len(t_ms), dtype=np.bool_)
    units = units_of(np.zeros(len(t_ms), dtype=np.int64), t_ms + shift_ms, asked, max_gap_ms=300_000, reach_ms=REACH_MS)
    fixes = Fixes(device=units.unit, t_ms=t_ms[units.row], lat=lat[units.row], lon=lon[units.row])
    found = find_events(every_fix(fixes), fences, settings=SETTINGS)
    kept = [event for event in found if (event.t_ms + shift_ms) // DAY_MS == units.day[event.device]]
    return sorted(GeofenceEvent(0, event.t_ms, event.kind, event.place, event.value) for event in kept)


def faults_of(seeds: range) -> tuple[list[str], int, int]:
    """What differs; how many events there were, and how many worlds that midnight cuts."""
    faults, events, cut = [], 0, 0
    for seed in seeds:
        made = timed_world(seed)
        if not made.versions:
            continue
        fences = FenceSet([one.fence() for one in made.versions])
        whole = sorted(find_events(tracks_of(made), fences, settings=SETTINGS))
        events += len(whole)
        for at in np.random.default_rng(seed).integers(made.t_ms[0], made.t_ms[-1] + 1, 3).tolist():
            shift_ms = -at % DAY_MS
            cut += made.t_ms[0] < at < made.t_ms[-1]
            if in_days(made, fences, shift_ms) != whole:
                faults.append(f"seed {seed}: midnight at {at}")
    return faults, events, cut


def test_wherever_midnight_cuts_a_track_the_days_have_the_events_of_the_whole() -> None:
    faults, events, cut = faults_of(range(9_000_000, 9_000_060))
    assert faults == []
    assert events > 100
    assert cut > 100


@pytest.mark.nightly
def test_wherever_midnight_cuts_a_track_the_days_have_the_events_of_the_whole_in_thousands_of_worlds() -> None:
    faults, events, cut = faults_of(range(9_100_000, 9_104_000))
    assert faults == []
    assert events > 5_000
    assert cut > 5_000
