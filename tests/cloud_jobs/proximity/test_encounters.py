"""Encounters: each pair once, the same in whatever order and pieces the fixes came, and as the engine finds them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.lake.schemas import ENCOUNTERS
from cloud_jobs.proximity.encounter_revisions import REVISIONS
from cloud_jobs.proximity.slices import SLICE_MS
from cloud_jobs.revisions import NOTE
from geo.spatial import Fixes, TrackSettings, build_tracks, find_encounters
from tests.cloud_jobs.proximity.centre import ProximityCentre, ProximityFix
from tests.geo.spatial.noisy_drives import Receiver, parked

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


def test_a_crowd_is_of_one_tenant() -> None:
    yard = [fix for name in "abcd" for fix in drive(name, MIDNIGHT, *[(50.0, 0.0)] * 4)]
    halves = [fix._replace(tenant="other") if fix.device in "cd" else fix for fix in yard]
    together, apart = ProximityCentre(crowd_devices=3), ProximityCentre(crowd_devices=3)
    together.take(yard)
    apart.take(halves)
    assert {row[:2] for row in together.in_force()} == {("*", name) for name in "abcd"}
    assert {(row[-1], *row[:2]) for row in apart.in_force()} == {("acme", "a", "b"), ("other", "c", "d")}


def parked_beside(apart_m: float, hours: float, receiver: Receiver, seed: int = 1) -> list[ProximityFix]:
    """Two that are parked on one day, so far from each other, with noise and no accuracy said."""
    one, other = (parked(hours, receiver, 2 * seed + by).fixes for by in (0, 1))
    begin_ms, east = MIDNIGHT - int(one.t_ms[0]), apart_m / 66_150
    return [
        ProximityFix(device, seq, begin_ms + int(t_ms), lat, lon)
        for device, said, off in (("a", one, 0.0), ("b", other, east))
        for seq, (t_ms, lat, lon) in enumerate(zip(said.t_ms, said.lat.tolist(), said.lon + off, strict=True), 1)
    ]


@pytest.mark.parametrize(("apart_m", "memory_s"), [(48.0, 0.0), (48.0, 30.0), (52.0, 300.0)])
def test_two_that_are_parked_at_the_distance_meet_once_a_day(apart_m: float, memory_s: float) -> None:
    """With four metres of noise; hour by hour, in no order."""
    fixes = parked_beside(apart_m, 23.9, Receiver(60.0, 4.0, memory_s))
    centre, exact = ProximityCentre(50.0), ProximityCentre(50.0, tracks=TrackSettings.every_fix())
    exact.take(fixes)
    for hour in (at * 7 % 24 for at in range(24)):
        centre.take(fix for fix in fixes if fix.t_ms // 3_600_000 % 24 == hour)
    assert len(centre.in_force()) == 1
    assert len(exact.in_force()) > 50
    assert max(row["revision"] for row in centre.table) < 60


def test_two_that_report_rest_meet_as_the_command_says_however_good_their_accuracy() -> None:
    """`cloud-jobs encounters` takes the speed of a fix too."""
    fixes = [one._replace(accuracy_m=3.0) for one in parked_beside(48.0, 23.9, Receiver(60.0, 8.0))]
    silent, at_rest = ProximityCentre(50.0), ProximityCentre(50.0)
    silent.take(fixes)
    at_rest.take(one._replace(speed_mps=0.0) for one in fixes)
    assert len(at_rest.in_force()) == 1
    assert len(silent.in_force()) > 10


def test_two_that_stay_between_the_distance_and_apart_leave_a_note_that_is_bounded_and_published_nowhere() -> None:
    fixes = parked_beside(55.0, 6.0, Receiver(60.0, 0.5))
    centre = ProximityCentre(50.0)
    for at in range(0, 360, 5):  # as they come, five minutes at once
        centre.take(fix for fix in fixes if at <= (fix.t_ms - MIDNIGHT) / MINUTE < at + 5)
    assert centre.in_force() == []
    assert {row["id"][:1] for row in centre.table} == {NOTE}
    # a slice is noted when it begins and when it is over
    assert len(centre.table) <= 2 * 6 * 4 + 2
    last = max(centre.table, key=lambda row: row["revision"])
    assert [part[0] for part in json.loads(last["parts"])] == [MIDNIGHT // SLICE_MS + at for at in range(24)]
    # two late contacts, three hours apart, are of one encounter: at no time between were they apart
    for minute in (60, 240):
        centre.take(
            ProximityFix("b", 1_000 + minute + at, MIDNIGHT + minute * MINUTE + at * 1_000, 50.0, 0.0)._replace(
                latitude=fixes[0].latitude, longitude=fixes[0].longitude + 45 / 66_150
            )
            for at in range(1, 300)
        )
    ((*_, start, end, _, _, _, _, _, _),) = centre.in_force()
    assert (end - start) / 60e6 == pytest.approx(180, abs=10)


def test_news_have_the_columns_of_the_table() -> None:
    assert REVISIONS.names == ENCOUNTERS.names[:-2]
    assert 86_400_000 % SLICE_MS == 0


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


@given(worlds(), st.sampled_from([0.0, 10.0, 120.0]))
def test_the_job_finds_what_the_engine_finds(fixes: list[ProximityFix], buffer_m: float) -> None:
    today = [fix for fix in fixes if fix.t_ms >= MIDNIGHT]
    rules = TrackSettings(buffer_m=buffer_m)
    centre = ProximityCentre(tracks=rules)
    centre.take(today)
    today.sort()
    tracks = build_tracks(
        Fixes(
            device=["abcd".index(fix.device) for fix in today],
            t_ms=[fix.t_ms for fix in today],
            lat=[fix.latitude for fix in today],
            lon=[fix.longitude for fix in today],
        ),
        rules,
    )
    found = find_encounters(tracks, centre.distance_m, rules.apart_m(centre.distance_m))
    mine = centre.in_force()
    assert [("abcd"[a], "abcd"[b]) for a, b in zip(found.device_a, found.device_b, strict=True)] == [
        row[:2] for row in mine
    ]
    for at, row in enumerate(mine):
        assert row[2] == pytest.approx(found.start_ms[at] * 1000, abs=2000)
        assert row[3] == pytest.approx(found.end_ms[at] * 1000, abs=2000)
        assert row[4] == pytest.approx(found.min_m[at], abs=0.01)
