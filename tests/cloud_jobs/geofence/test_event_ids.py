"""The id of an event follows from what happened: the fix that ends its segment, place and kind; never from arrival."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.geofence.config import GeofenceSettings
from cloud_jobs.geofence.event_revisions import EventRules
from cloud_jobs.geofence.units import DAY_MS
from geo.spatial import DayEvent, TrackSettings, identified
from tests.cloud_jobs.geofence.centre import GeofenceCentre, GeofenceFix, rules
from tests.cloud_jobs.geofence.test_event_revisions import MINUTE, NOON, THROUGH, drive


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


def test_a_way_that_crosses_a_gate_three_times_in_a_segment_has_three_events() -> None:
    line = [[0.015, 0.0], [0.015, 0.003], [0.0149, 0.005], [0.0151, 0.005], [0.015, 0.007], [0.015, 0.01]]
    properties, geometry = {"id": "g", "gate": True}, {"type": "LineString", "coordinates": line}
    gate = json.dumps({"type": "Feature", "properties": properties, "geometry": geometry})
    centre = GeofenceCentre(EventRules.of([gate], TrackSettings(), GeofenceSettings()))
    centre.take(drive(NOON, (0.0, 0.015 - 0.0001), (0.01, 0.015 + 0.0001), step_ms=4 * MINUTE))
    assert [row["kind"] for row in centre.table] == ["forward", "backward", "forward"]
    assert {row["seq"] for row in centre.table} == {2}
    assert len({row["id"] for row in centre.table}) == 3


def test_an_event_that_moves_over_midnight_is_taken_back_on_the_one_day_and_made_on_the_other() -> None:
    midnight = 20_001 * DAY_MS
    late = GeofenceFix("d", 9, midnight + 1_000, 0.005, -0.001)
    whole, moved = GeofenceCentre(rules(dwell_s=None)), GeofenceCentre(rules(dwell_s=None))
    fixes = [
        GeofenceFix("d", 1, midnight - 60_000, 0.005, -0.005),
        GeofenceFix("d", 2, midnight + 60_000, 0.005, 0.006),
    ]
    moved.take(fixes)
    moved.take([late])
    whole.take([*fixes, late])
    assert [row["time"] // 1000 // DAY_MS for row in moved.table if row["revision"] == 0] == [20_000, 20_001]
    assert {row["seq"] for row in moved.table} == {2}
    assert [row["retracted"] for row in moved.table] == [False, True, False]
    assert moved.in_force() == whole.in_force()


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


def test_two_tenants_may_have_a_device_of_the_same_name() -> None:
    alone, both = GeofenceCentre(rules(dwell_s=None)), GeofenceCentre(rules(dwell_s=None))
    alone.take(THROUGH)
    # beside each other's fixes the tracks of both would jump to and fro
    elsewhere = [fix._replace(tenant="other", latitude=0.009, t_ms=fix.t_ms + 7_000) for fix in THROUGH]
    both.take([*THROUGH, *elsewhere])
    mine, others = ([row for row in both.in_force() if row[-1] == tenant] for tenant in ("acme", "other"))
    assert mine == alone.in_force()
    assert [(row[1] - 7_000_000, *row[2:4]) for row in others] == [row[1:4] for row in mine]
    assert {row[5] for row in mine}.isdisjoint(row[5] for row in others)
