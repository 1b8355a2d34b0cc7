"""Files of fixes: a block of rows and each row by itself give the same fixes and the same faults."""

from __future__ import annotations

import tracemalloc
from operator import itemgetter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from geo.spatial import read_fixes
from tests.fuzz.targets.files import same

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
        "line 1: the column 'speed' is not read; is speed_mps meant?",
        "line 1: the column 'accuracy' is not read; is accuracy_m meant?",
    )
    assert read_fixes(["device_id,t_ms,lat,lon,accuracy_m,accuracy", "a,1,53.5,10.0,4,4"]).notices == ()
