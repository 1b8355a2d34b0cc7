"""The id of an event follows from what happened: the fix that ends its segment, place and kind; never from arrival."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from geo.spatial import DayEvent, identified
from tests.cloud_jobs.geofence.centre import GeofenceCentre, GeofenceFix, rules
from tests.cloud_jobs.geofence.test_event_revisions import MINUTE, NOON, THROUGH


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
