"""Events are published once, corrected when late fixes say otherwise, and end the same in whatever order fixes came."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from shapely.affinity import translate

from geo.spatial import FenceSet
from geo.spatial.event_ids import DAY_MS
from tests.cloud_jobs.geofence.centre import GeofenceCentre, GeofenceFix, latest, rules

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
