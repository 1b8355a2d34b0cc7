"""What a probe is to leave behind is what the spatial engine finds in its fixes."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.local.stack_settings import canary_place
from gateway.canary.config import CanaryScript, ScriptSettings
from geo.spatial import (
    FenceSet,
    Fixes,
    PublishedEventSettings,
    TrackSettings,
    build_tracks,
    fences_from_geojson,
    find_events,
    use_by_fence,
)
from tests.examples import examples


def fences(script: CanaryScript) -> FenceSet:
    geometry = {"type": "Polygon", "coordinates": [script.fence()]}
    feature = {"type": "Feature", "id": "canary", "properties": {}, "geometry": geometry}
    report = fences_from_geojson(json.dumps({"type": "FeatureCollection", "features": [feature]}))
    assert not report.refused
    return FenceSet(report.fences)


@given(
    latitude=st.floats(-80, 80),
    longitude=st.floats(-179, 179),
    fence_m=st.floats(100, 500),
    first=st.integers(0, 10**8),
)
@settings(max_examples=examples(25))
def test_each_probe_enters_and_leaves_once_and_drives_the_known_length(
    latitude: float, longitude: float, fence_m: float, first: int
) -> None:
    script = CanaryScript(ScriptSettings(latitude=latitude, longitude=longitude, fence_m=fence_m, period_s=90))
    rows = [
        (script.begins_ms(number) + fix.after_ms, fix) for number in (first, first + 1) for fix in script.fixes(number)
    ]
    fixes = Fixes(
        device=np.zeros(len(rows), dtype=np.int64),
        t_ms=np.array([t_ms for t_ms, _ in rows], dtype=np.int64),
        lat=np.array([fix.latitude for _, fix in rows]),
        lon=np.array([fix.longitude for _, fix in rows]),
    )
    tracks, fence = build_tracks(fixes, TrackSettings()), fences(script)
    events = find_events(tracks, fence, settings=PublishedEventSettings())
    assert [event.kind for event in events] == ["enter", "exit"] * 2
    used = use_by_fence(tracks, fence)
    assert 1000 * float(np.sum(used.metres)) == pytest.approx(2 * script.inside_mm, abs=30.0)


def test_the_next_probe_begins_where_the_last_one_ended() -> None:
    script = CanaryScript(ScriptSettings(latitude=53.4, longitude=-2.9))
    for number in (4, 5):
        last, following = list(script.fixes(number))[-1], next(script.fixes(number + 1))
        assert (last.latitude, last.longitude) == (following.latitude, following.longitude)


def test_probes_are_numbered_by_the_clock_and_lie_in_one_quarter_of_an_hour() -> None:
    script = CanaryScript(ScriptSettings(latitude=0.0, longitude=0.0))
    for number in range(100):
        assert script.number_at(script.begins_ms(number)) == number
        assert script.number_at(script.begins_ms(number) + script.driven_ms) == number
        assert script.begins_ms(number) // 900_000 == (script.begins_ms(number) + script.driven_ms) // 900_000


@pytest.mark.parametrize("wrong", [{"period_s": 35}, {"period_s": 10}])
def test_a_period_that_does_not_fit_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="period_s"):
        CanaryScript(ScriptSettings(latitude=0.0, longitude=0.0, **wrong))


def test_no_canary_of_a_local_stack_drives_through_the_fence_of_another_region() -> None:
    regions = ["us", "eu", "ap"]
    scripts = {
        region: CanaryScript(ScriptSettings(latitude=latitude, longitude=longitude))
        for region in regions
        for latitude, longitude in [canary_place(region, regions)]
    }
    for own, script in scripts.items():
        fixes = [*script.fixes(0)]
        longitudes, latitudes = (
            np.array(column) for column in zip(*((f.longitude, f.latitude) for f in fixes), strict=True)
        )
        for other, fenced in scripts.items():
            inside, _ = fences(fenced).holding(longitudes, latitudes, np.zeros(len(fixes), dtype=np.int64))
            assert bool(len(inside)) == (own == other)
