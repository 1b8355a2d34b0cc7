"""Events of a day are those of the whole track that fall in it, wherever midnight cuts it."""

from __future__ import annotations

import numpy as np
import pytest

from cloud_jobs.geofence.event_revisions import units_of
from geo.spatial import EventSettings, FenceSet, Fixes, GeofenceEvent, find_events
from geo.spatial.event_ids import DAY_MS
from tests.geo.spatial.timed_world import TimedWorld, timed_world, tracks_of
from tests.geo.spatial.worlds import every_fix

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
