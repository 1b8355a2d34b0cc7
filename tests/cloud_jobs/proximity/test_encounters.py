"""Encounters: each pair once, the same in whatever order and pieces the fixes came, and as the engine finds them."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from geo.spatial import TrackSettings
from tests.cloud_jobs.proximity.centre import ProximityCentre, ProximityFix

MIDNIGHT = 20_000 * 86_400_000
MINUTE = 60_000


def drive(device: str, start_ms: int, *places: tuple[float, float], step_ms: int = MINUTE) -> list[ProximityFix]:
    return [
        ProximityFix(device, number, start_ms + number * step_ms, lat, lon)
        for number, (lat, lon) in enumerate(places, 1)
    ]


def test_two_that_pass_meet_once_and_the_ids_are_in_order() -> None:
    centre = ProximityCentre()
    centre.take(drive("b", MIDNIGHT, (50.0, 0.0), (50.0, 0.01)) + drive("a", MIDNIGHT, (50.0, 0.01), (50.0, 0.0)))
    ((a, b, start, end, least, when, *_),) = centre.in_force()
    assert (a, b, least) == ("a", "b", 0.0)
    assert start < when < end
    assert when == (MIDNIGHT + MINUTE + MINUTE // 2) * 1000


def test_side_by_side_over_slices_is_one_encounter_and_over_midnight_two_that_touch() -> None:
    places = [(50.0, 0.0)] * 90
    centre = ProximityCentre()
    start = MIDNIGHT - 60 * MINUTE
    centre.take(drive("a", start, *places) + drive("b", start, *places))
    (before, after) = centre.in_force()
    assert before[3] == after[2] == MIDNIGHT * 1000
    assert len(json.loads(before[6])) == 4
    assert (before[2], after[3]) == ((start + MINUTE) * 1000, (start + 90 * MINUTE) * 1000)


def test_an_encounter_that_goes_on_is_the_next_revision_and_a_late_fix_retracts_what_was_none() -> None:
    centre = ProximityCentre()
    together = [(50.0, 0.0)] * 3
    (first,) = centre.take(drive("a", MIDNIGHT, *together) + drive("b", MIDNIGHT, *together[:2]))
    (second,) = centre.take([ProximityFix("b", 9, MIDNIGHT + 3 * MINUTE, 50.0, 0.0)])
    assert (first["id"], first["revision"]) == (second["id"], second["revision"] - 1)
    far = [ProximityFix("b", 20 + at, MIDNIGHT + MINUTE + at * 1_000, 51.0, 0.0) for at in range(121)]
    assert len(centre.in_force()) == 1
    centre.take(far)
    assert all(row[3] - row[2] < MINUTE * 1000 for row in centre.in_force())


def test_devices_of_two_tenants_never_meet_and_two_of_one_name_are_two_devices() -> None:
    places = [(50.0, 0.0)] * 4
    mine = drive("a", MIDNIGHT, *places) + drive("b", MIDNIGHT, *places)
    alone, both = ProximityCentre(), ProximityCentre()
    alone.take(mine)
    others = [fix._replace(tenant="other", t_ms=fix.t_ms + 1_000) for fix in mine]
    both.take(mine + others)
    assert [row[:2] for row in both.in_force()] == [("a", "b")] * 2
    assert [row for row in both.in_force() if row[-1] == "acme"] == alone.in_force()
    lone = ProximityCentre()
    lone.take([*drive("a", MIDNIGHT, *places), *(fix for fix in others if fix.device == "b")])
    assert lone.in_force() == []


places = st.tuples(st.integers(0, 30).map(lambda y: 50 + y / 1e4), st.integers(0, 30).map(lambda x: x / 1e4))
steps = st.tuples(st.sampled_from([0, 1_000, 30_000, 120_000, 300_000, 300_001, 1_000_000]), places)


@st.composite
def worlds(draw: st.DrawFn) -> list[ProximityFix]:
    """Four devices in a small place around midnight, with pauses and equal times; side by side as often as not."""
    fixes: list[ProximityFix] = []
    for device in "abcd":
        t_ms = MIDNIGHT - draw(st.sampled_from([0, 600_000, 700_001]))
        for seq, (wait, (lat, lon)) in enumerate(draw(st.lists(steps, max_size=10)), 1):
            t_ms += wait
            fixes.append(ProximityFix(device, seq, t_ms, lat, lon))
    return fixes


@st.composite
def worlds_of_two(draw: st.DrawFn) -> list[ProximityFix]:
    """The same, with devices of the same names of another tenant in the same place."""
    return draw(worlds()) + [fix._replace(tenant="other") for fix in draw(worlds())]


@given(
    worlds() | worlds_of_two(),
    st.randoms(use_true_random=False),
    st.integers(1, 5),
    st.sampled_from([300.0, 5_000.0]),
    st.tuples(st.sampled_from([2, 3, 100]), st.sampled_from([0.0, 10.0, 120.0])),
)
def test_streaming_equals_batch_whatever_the_cells_and_crowds(
    fixes: list[ProximityFix], random: object, cuts: int, cell_m: float, limits: tuple[int, float]
) -> None:
    crowd_devices, rules = limits[0], TrackSettings(buffer_m=limits[1])
    batch, stream, again = (
        ProximityCentre(crowd_devices=crowd_devices, tracks=rules),
        ProximityCentre(cell_m=cell_m, crowd_devices=crowd_devices, tracks=rules),
        ProximityCentre(crowd_devices=crowd_devices, tracks=rules),
    )
    batch.take(fixes)
    shuffled = list(fixes)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    for at in range(cuts):
        stream.take(shuffled[at::cuts])
    assert stream.in_force() == batch.in_force()
    names = [(row["id"], row["revision"]) for row in stream.table]
    assert len(names) == len(set(names))
    again.table = list(stream.table)
    assert again.take(fixes) == []
