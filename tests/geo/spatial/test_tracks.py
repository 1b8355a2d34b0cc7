"""What is excluded and where tracks break."""

import tracemalloc
from operator import itemgetter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from geo.spatial import Fixes, Tracks, TrackSettings, Verdict, build_tracks, read_fixes
from tests.fuzz.targets.files import same


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


HEADER = "device_id,t_ms,lat,lon,speed_mps,accuracy_m"
numbers = (
    st.floats(-95, 95).map(repr)
    | st.floats().map(repr)
    | st.sampled_from(
        ["", " 1 ", "+1", "1.", ".5", ".", "1e2", "1E+2", "1e400", "-0", "nan", "1_0", "0x1", "1-2", "\u0661", "0" * 70]
    )
)
times = st.integers(-(1 << 64), 1 << 64).map(str) | st.sampled_from(
    ["", "1.0", "+5", "007", "-", " 3", "\u0661", "9" * 65]
)
devices = st.sampled_from(["a", " a", "a ", "", "\udcff", "*", "x" * 257, "\u00e4"]) | st.text("ab\x00\t", max_size=3)
rows = st.tuples(devices, times, numbers, numbers, numbers, numbers).map(",".join)
plain = st.tuples(
    st.sampled_from(["a", "b", " c"]),
    st.integers(-(1 << 53) + 1, (1 << 53) - 1).map(str),
    st.floats(-90, 90).map(repr),
    st.floats(-180, 180).map(repr),
    st.floats(0, 1e300).map(repr) | st.just(""),
    st.floats(0, 100).map(repr) | st.just(""),
).map(",".join)


@given(st.lists(plain, min_size=1, max_size=8) | st.lists(rows | plain, max_size=8))
def test_a_block_and_its_rows_by_themselves_are_the_same_fixes(lines: list[str]) -> None:
    block = read_fixes([HEADER, *lines])
    by_row = read_fixes([HEADER, *lines, "malformed"])
    assert len(block.fixes) + block.fault_count + block.device_fault_count == sum(bool(line.strip()) for line in lines)
    assert by_row.fault_count == block.fault_count + 1
    assert by_row.faults[:-1] == block.faults
    same(block, by_row)


def test_one_long_cell_among_many_short_ones_takes_no_room_in_the_others() -> None:
    lines = [HEADER, *(f"d,{at},50,10,," for at in range(50_000)), f"d,{'0' * 60_000},50,10,,"]
    tracemalloc.start()
    read = read_fixes(lines)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (len(read.fixes), read.fault_count) == (50_000, 1)
    assert peak < 200e6


SINCE_S = 1_767_600_000
UNITS = {"seconds": 1, "milliseconds": 1_000, "microseconds": 1_000_000}


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([*UNITS])), min_size=1, max_size=12))
def test_no_fix_of_another_unit_is_measured_and_each_of_a_device_is_named_with_its_first_line(
    units: list[tuple[str, str]],
) -> None:
    lines = [f"{device},{(SINCE_S + at) * UNITS[unit]},50,10,," for at, (device, unit) in enumerate(units)]
    read = read_fixes([HEADER, *lines])
    assert read.fixes.t_ms.tolist() == [
        (SINCE_S + at) * 1_000 for at, (_, unit) in enumerate(units) if unit == "milliseconds"
    ]
    assert read.devices == tuple(sorted({device for device, unit in units if unit == "milliseconds"}))
    first = {device: at for at, (device, unit) in reversed([*enumerate(units)]) if unit != "milliseconds"}
    named = [tuple(said.split(":")[:2]) for said in read.device_faults]
    assert named == [
        (f"line {at + 2}", f" device {device!r}") for device, at in sorted(first.items(), key=itemgetter(1))
    ]
    assert read.device_fault_count == len(units) - len(read.fixes)


def test_an_accuracy_or_a_speed_with_the_sign_of_an_invalid_one_is_not_reported() -> None:
    lines = [f"a,{at},50,10,{cell},{cell}" for at, cell in enumerate(["-1", "0", "", "nan", "-0.0", "8"])]
    fixes = read_fixes([HEADER, *lines]).fixes
    nothing = float("nan")
    np.testing.assert_array_equal(fixes.accuracy_m, [nothing] * 5 + [8])
    np.testing.assert_array_equal(fixes.speed_mps, [nothing, 0, nothing, nothing, 0, 8])


def test_a_column_that_reads_like_one_of_ours_is_named_and_others_are_not() -> None:
    read = read_fixes(["device_id,t_ms,lat,lon,speed,accuracy,hdop,satellites", "a,1,53.5,10.0,12.2,4,0.9,9"])
    assert read.notices == (
        "line 1: the column 'speed' is not read; did you mean speed_mps?",
        "line 1: the column 'accuracy' is not read; did you mean accuracy_m?",
    )
    assert read_fixes(["device_id,t_ms,lat,lon,accuracy_m,accuracy", "a,1,53.5,10.0,4,4"]).notices == ()
