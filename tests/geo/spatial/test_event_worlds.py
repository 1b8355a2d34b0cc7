"""Visits and encounters in worlds made to be hard: their definition, their symmetries, and what never changes."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from geo.spatial import Encounters, Fixes, find_encounters
from tests.examples import examples
from tests.geo.spatial import event_fuzz
from tests.geo.spatial.worlds import START_MS, every_fix

PLACES = [(179.999, 0.0), (-180.0, 60.0), (10.0, 89.995), (-170.0, -89.9), (0.0, 85.0), (10.0, 50.0)]


def test_visits_with_hysteresis_are_those_of_their_definition_and_corrections_end_with_what_the_fixes_say() -> None:
    counts, last = event_fuzz.run(seed=1_000_000, pairs=300)
    print(f"seeds 1000000 to {last}: {counts.summary()}")  # noqa: T201  # what was tried is part of the result
    assert counts.faults == []
    assert counts.visits > 200
    assert counts.jitter > 1_000
    assert counts.corrected > 1_000
    assert counts.unsure < counts.pairs // 2


@st.composite
def fleets(draw: st.DrawFn) -> tuple[Fixes, float]:
    """Three devices on their way around a place, and a distance at which they meet now and then."""
    lon, lat = draw(st.sampled_from(PLACES))
    random = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    size_m = 10 ** draw(st.floats(1.5, 3.5))
    steps, devices = 5, 3
    east, north = random.uniform(-size_m, size_m, (2, devices * steps))
    # over a pole the way goes on on the other side
    x, y = np.radians(lon), np.radians(90.0 - abs(lat)) * 6_371_000.0
    plane = np.array([y * np.sin(x) + east, y * np.cos(x) + north])
    polar = np.sign(lat) * (90.0 - np.degrees(np.hypot(*plane) / 6_371_000.0)), np.degrees(np.arctan2(*plane))
    flat = lat + north / 111_000.0, lon + east / 111_000.0 / np.cos(np.radians(lat))
    lats, lons = polar if abs(lat) > 88.0 else flat
    t_ms = np.concatenate([np.cumsum(random.integers(1_000, 30_000, steps)) for _ in range(devices)])
    fixes = Fixes(
        device=np.repeat(np.arange(devices), steps), t_ms=START_MS + t_ms, lat=lats, lon=(lons + 180.0) % 360.0 - 180.0
    )
    return fixes, size_m * draw(st.floats(0.1, 0.8))


def rows(found: Encounters, names: tuple[int, int, int] = (0, 1, 2)) -> list[tuple[float, ...]]:
    columns = (found.device_a, found.device_b, found.start_ms, found.end_ms, found.min_m)
    listed = zip(*(column.tolist() for column in columns), strict=True)
    return sorted((*sorted((names[int(a)], names[int(b)])), *rest) for a, b, *rest in listed)


def same(one: list[tuple[float, ...]], other: list[tuple[float, ...]]) -> None:
    assert [row[:2] for row in one] == [row[:2] for row in other]
    np.testing.assert_allclose(np.array(one).reshape(-1, 5)[:, 2:4], np.array(other).reshape(-1, 5)[:, 2:4], atol=0.5)
    np.testing.assert_allclose(np.array(one).reshape(-1, 5)[:, 4], np.array(other).reshape(-1, 5)[:, 4], atol=0.05)


def touches(fixes: Fixes, within_m: float) -> bool:
    """Does an encounter begin, or end, by less than can be decided: two at a distance that hardly reaches the limit?"""
    counts = [len(find_encounters(every_fix(fixes), within_m * (1 + by))) for by in (-2e-3, 0.0, 2e-3)]
    return len(set(counts)) > 1


@settings(max_examples=examples(40), deadline=None)
@given(fleets(), st.permutations((0, 1, 2)))
def test_encounters_are_the_same_whoever_is_asked_first_and_in_whichever_direction_of_time(
    made: tuple[Fixes, float], names: list[int]
) -> None:
    fixes, within_m = made
    if touches(fixes, within_m):
        return
    met = rows(find_encounters(every_fix(fixes), within_m))
    renamed = Fixes(device=np.array(names)[fixes.device], t_ms=fixes.t_ms, lat=fixes.lat, lon=fixes.lon)
    a, b, c = (names.index(name) for name in range(3))
    same(met, rows(find_encounters(every_fix(renamed), within_m), (a, b, c)))
    last = 2 * START_MS + 1_000_000
    back = Fixes(device=fixes.device, t_ms=last - fixes.t_ms, lat=fixes.lat, lon=fixes.lon)
    again = rows(find_encounters(every_fix(back), within_m))
    same(met, sorted((*row[:2], last - row[3], last - row[2], row[4]) for row in again))


def way(fixes: Fixes, device: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times, longitudes without a jump (each step the short way), latitudes of a device."""
    mine = fixes.device == device
    lon = fixes.lon[mine]
    step = (np.diff(lon) + 180.0) % 360.0 - 180.0
    return fixes.t_ms[mine].astype(float), lon[0] + np.append(0.0, np.cumsum(step)), fixes.lat[mine]
