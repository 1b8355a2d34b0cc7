"""Files of fixes: a block of rows and each row by itself give the same fixes and the same faults."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from geo.spatial import read_fixes
from tests.fuzz.targets.fixes_csv import same

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
    assert len(block.fixes) + block.fault_count == sum(bool(line.strip()) for line in lines)
    assert by_row.fault_count == block.fault_count + 1
    assert by_row.faults[:-1] == block.faults
    same(block, by_row)


def test_a_time_of_more_than_64_bits_is_named_and_the_rest_is_used() -> None:
    read = read_fixes([HEADER, "d,0,50,10,,", "d,9223372036854775808,50,10,,", "d,1,50,10,,"])
    assert (len(read.fixes), read.fault_count) == (2, 1)
    assert read.faults[0].startswith("line 3:")


def test_one_long_cell_among_many_short_ones_takes_no_room_in_the_others() -> None:
    lines = [HEADER, *(f"d,{at},50,10,," for at in range(50_000)), f"d,{'0' * 60_000},50,10,,"]
    tracemalloc.start()
    read = read_fixes(lines)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (len(read.fixes), read.fault_count) == (50_000, 1)
    assert peak < 200e6
