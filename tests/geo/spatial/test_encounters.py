"""Encounters against a plain search through time."""

from collections.abc import Iterable
from itertools import combinations

import numpy as np
import pytest
from geographiclib.geodesic import Geodesic
from hypothesis import given
from hypothesis import strategies as st

from geo.spatial import Encounters, Fixes, find_encounters
from geo.spatial.geodesic import distance_m
from geo.spatial.nearby import Candidates
from tests.geo.spatial.worlds import START_MS, every_fix, joined, line

SECONDS = 60


@st.composite
def fleets(draw: st.DrawFn) -> Fixes:
    """Some devices wandering within a few kilometres, each on its own beat."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    lon0 = draw(st.sampled_from([-3.0, 179.99]))
    lat0 = draw(st.sampled_from([0.0, 53.4, 78.0]))
    parts = []
    for device in range(draw(st.integers(2, 5))):
        t = np.arange(0, SECONDS * 1000, draw(st.sampled_from([1000, 7000, 20_000]))) + int(rng.integers(0, 900))
        way = np.cumsum(rng.normal(0, 40, (2, len(t))), axis=1) + rng.uniform(-700, 700, (2, 1))
        lon = lon0 + way[0] / 111_320 / np.cos(np.radians(lat0))
        parts.append(
            Fixes(device=[device] * len(t), t_ms=START_MS + t, lat=lat0 + way[1] / 111_320, lon=(lon + 180) % 360 - 180)
        )
    return joined(parts)


def position(fixes: Fixes, device: int, t_ms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mine = fixes.device == device
    return np.interp(t_ms, fixes.t_ms[mine], np.mod(fixes.lon[mine], 360)), np.interp(
        t_ms, fixes.t_ms[mine], fixes.lat[mine]
    )


def searched(fixes: Fixes, a: int, b: int, within_m: float, apart_m: float) -> list[tuple[float, float, float]]:
    """(start, end, least distance), by looking every 5 ms: of each stretch in which they are never apart and met."""
    low = max(fixes.t_ms[fixes.device == one].min() for one in (a, b))
    high = min(fixes.t_ms[fixes.device == one].max() for one in (a, b))
    t = np.arange(low, high + 1, 5.0)
    away = distance_m(*position(fixes, a, t), *position(fixes, b, t))
    edges = np.flatnonzero(np.diff(np.concatenate([[False], away <= apart_m, [False]]).astype(int)))
    stretches = [np.arange(i, j)[away[i:j] <= within_m] for i, j in zip(edges[::2], edges[1::2], strict=True)]
    return [(t[near[0]], t[near[-1]], away[near].min()) for near in stretches if len(near)]


@given(fleets(), st.sampled_from([30.0, 200.0, 900.0]), st.sampled_from([0.0, 10.0, 150.0]))
def test_encounters_are_those_that_a_search_through_time_finds(fixes: Fixes, within_m: float, buffer_m: float) -> None:
    found = find_encounters(every_fix(fixes), within_m, within_m + buffer_m)
    for a, b in combinations(np.unique(fixes.device).tolist(), 2):
        mine = (found.device_a == a) & (found.device_b == b) & (found.end_ms - found.start_ms > 20)
        expected = [row for row in searched(fixes, a, b, within_m, within_m + buffer_m) if row[1] - row[0] > 20]
        if len(expected) == mine.sum():
            got = np.column_stack([found.start_ms, found.end_ms, found.min_m])[mine]
            np.testing.assert_allclose(got[:, :2], np.array(expected).reshape(-1, 3)[:, :2], atol=6)
            np.testing.assert_allclose(got[:, 2], [row[2] for row in expected], atol=0.6)
        else:  # a touch shorter than the search's step may join or part two of them
            total = sum(row[1] - row[0] for row in expected)
            assert (found.end_ms - found.start_ms)[mine].sum() == pytest.approx(total, abs=60)
    assert (found.device_a < found.device_b).all()


def test_two_vehicles_that_pass_each_other_meet_once_with_their_closest_approach_between_fixes() -> None:
    # one goes east along 50.000, the other west along 50.001; fixes a minute apart
    one = line([(10.00, 50.0), (10.01, 50.0), (10.02, 50.0)], 60_000, device=7)
    other = line([(10.02, 50.001), (10.01, 50.001), (10.00, 50.001)], 60_000, device=3)
    found = find_encounters(every_fix(joined([one, other])), 500.0)
    assert (found.device_a.tolist(), found.device_b.tolist()) == ([3], [7])
    assert found.t_min_ms[0] == pytest.approx(START_MS + 60_000, abs=1)
    least = Geodesic.WGS84.Inverse(50.0, 10.01, 50.001, 10.01)["s12"]
    assert found.min_m[0] == pytest.approx(least, abs=1e-3)
    # 500 m apart at both ends: both drive 0.02 degrees in two minutes
    half_way = np.sqrt(500**2 - least**2) / Geodesic.WGS84.Inverse(50.0, 10.0, 50.0, 10.01)["s12"] * 30_000
    assert found.start_ms[0] == pytest.approx(START_MS + 60_000 - half_way, abs=5)
    assert found.end_ms[0] == pytest.approx(START_MS + 60_000 + half_way, abs=5)


def test_each_pair_comes_once_however_the_world_is_cut() -> None:
    rng = np.random.default_rng(2)
    parts = [
        line(
            list(zip(10 + np.cumsum(rng.normal(0, 0.001, 40)), 50 + np.cumsum(rng.normal(0, 0.001, 40)), strict=True)),
            5000,
            device,
        )
        for device in range(12)
    ]
    whole = find_encounters(every_fix(joined(parts)), 300.0)
    pairs = [find_encounters(every_fix(joined([parts[a], parts[b]])), 300.0) for a, b in combinations(range(12), 2)]
    assert len(whole) == sum(len(pair) for pair in pairs)
    together = sorted(row for pair in pairs for row in rows(pair))
    np.testing.assert_allclose(np.array(sorted(rows(whole))), np.array(together), rtol=0, atol=5e-3)


def rows(found: Encounters) -> list[tuple[float, ...]]:
    return list(
        zip(found.device_a, found.device_b, found.start_ms, found.end_ms, found.min_m, found.t_min_ms, strict=True)
    )


def pairs(found: Iterable[Candidates]) -> set[tuple[int, int, float, float]]:
    """Pairs of segments with the time they share; devices are in order, so a pair has one name."""
    columns = [(part.one, part.other, part.start_ms, part.end_ms) for part in found]
    listed = [row for part in columns for row in zip(*(column.tolist() for column in part), strict=True)]
    assert len(listed) == len(set(listed)), "a pair comes once"
    return set(listed)
