"""What is excluded and where tracks break."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from geo.spatial import Fixes, Tracks, TrackSettings, Verdict, build_tracks


def along(*degrees: float, step_ms: int = 1000) -> Fixes:
    """Fixes eastwards along 50° north, 0.001° being some 72 m."""
    n = len(degrees)
    return Fixes(device=np.zeros(n), t_ms=np.arange(n) * step_ms, lat=np.full(n, 50.0), lon=np.array(degrees) + 1.0)


def test_fixes_are_ordered_by_time_and_of_equal_times_the_first_is_kept() -> None:
    fixes = Fixes(device=[1, 0, 1, 1], t_ms=[20, 5, 10, 20], lat=[3, 1, 2, 4], lon=[3, 1, 2, 4])
    tracks = build_tracks(fixes, TrackSettings.every_fix())
    assert tracks.row.tolist() == [1, 2, 0]
    assert tracks.verdict.tolist() == [Verdict.KEPT, Verdict.KEPT, Verdict.KEPT, Verdict.DUPLICATE]


def test_null_island_and_bad_accuracy_are_excluded_and_counted() -> None:
    fixes = Fixes(
        device=[0] * 4, t_ms=[0, 1, 2, 3], lat=[0, 0, 1e-5, 0], lon=[0, 5, 0, 5], accuracy_m=[1, np.nan, 101, 100]
    )
    counts = build_tracks(fixes).counts()
    assert (counts["null_island"], counts["inaccurate"], counts["kept"]) == (1, 1, 2)


def test_a_single_wild_fix_is_excluded_and_the_track_goes_on() -> None:
    tracks = build_tracks(along(0, 0.0002, 0.5, 0.0006))
    assert tracks.verdict.tolist() == [0, 0, Verdict.IMPLAUSIBLE, 0]
    assert tracks.linked.tolist() == [False, True, True]
    assert tracks.speed_breaks == 0


def test_a_jump_that_stays_is_a_break() -> None:
    tracks = build_tracks(along(0, 0.0002, 0.5, 0.5002))
    assert tracks.counts()["implausible"] == 0
    assert tracks.linked.tolist() == [False, True, False, True]
    assert (tracks.speed_breaks, tracks.gap_breaks) == (1, 0)


def test_the_rule_for_wild_fixes_looks_at_neighbours_within_the_gap_only() -> None:
    fixes = Fixes(device=[0] * 3, t_ms=[0, 301_000, 302_000], lat=[50] * 3, lon=[0, 1, 0.001])
    assert build_tracks(fixes).counts()["implausible"] == 0


_steps = st.tuples(st.integers(1, 2), st.sampled_from([True, True, False]))
_rules = st.builds(
    TrackSettings, max_gap_s=st.sampled_from([1.0, 2.5, 4.0]), max_speed_mps=st.sampled_from([None, 70.0, 70.0, 70.0])
)


@given(st.lists(_steps, min_size=3, max_size=8), st.lists(_steps, min_size=1, max_size=3), _rules, st.integers(-1, 2))
def test_fixes_beyond_the_reach_ahead_change_no_segment_that_ends_before(
    steps: list[tuple[int, bool]], later: list[tuple[int, bool]], rules: TrackSettings, end: int
) -> None:
    # between two places that are too far from each other: of three fixes the one in the middle is often an outlier
    halves, jumps = (np.array(column) for column in zip(*steps, *later, strict=True))
    t_ms, lon = np.cumsum(halves) * 500, 1 + 3.0 * (np.cumsum(jumps) % 2)
    end_ms = int(t_ms[len(steps) - 1]) + end * 250
    t_ms[len(steps) :] += end_ms + rules.reach_ahead_ms - t_ms[len(steps)]

    def segments(count: int) -> list[tuple[int, int, float]]:
        fixes = Fixes(device=np.zeros(count), t_ms=t_ms[:count], lat=np.full(count, 50.0), lon=lon[:count])
        made = build_tracks(fixes, rules)
        times, ends = made.fixes.t_ms[made.row], made.segments()
        found = zip(times[ends - 1].tolist(), times[ends].tolist(), made.metres[ends].tolist(), strict=True)
        return [one for one in found if one[1] < end_ms]

    assert segments(len(steps)) == segments(len(t_ms))


@given(
    st.lists(st.tuples(st.sampled_from([1_000, 60_000, 290_000, 301_000]), st.booleans()), min_size=3, max_size=40),
    st.integers(0, 40),
    st.integers(0, 40),
)
def test_two_gaps_of_time_around_a_part_give_its_segments_as_in_the_whole(
    steps: list[tuple[int, bool]], first: int, count: int
) -> None:
    # between two places far from each other: whole runs of fixes may be excluded
    t_ms = np.cumsum([step for step, _ in steps])
    lon = np.array([0.5 * far for _, far in steps])
    fixes = Fixes(device=np.zeros(len(t_ms)), t_ms=t_ms, lat=np.full(len(t_ms), 50.0), lon=lon)
    first = min(first, len(t_ms) - 1)
    asked = np.arange(first, min(first + count + 1, len(t_ms)))
    near = np.flatnonzero((t_ms >= t_ms[asked[0]] - 600_000) & (t_ms <= t_ms[asked[-1]] + 600_000))
    part = Fixes(device=np.zeros(len(near)), t_ms=t_ms[near], lat=np.full(len(near), 50.0), lon=lon[near])
    assert segments(build_tracks(part), near, asked) == segments(build_tracks(fixes), np.arange(len(t_ms)), asked)


def segments(tracks: Tracks, rows: np.ndarray, asked: np.ndarray) -> list[tuple[int, int]]:
    """The fixes at both ends of the segments that end at one of the fixes asked for."""
    end = tracks.segments()
    pairs = zip(rows[tracks.row[end - 1]].tolist(), rows[tracks.row[end]].tolist(), strict=True)
    return [pair for pair in pairs if pair[1] in asked]
