"""Rows of coverage give it back, and their union is that of the coverages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.lake.coverage import Coverage, DeviceStream
from cloud_jobs.lake.coverage_log import COVERAGE_ROWS, from_rows, to_rows, unite
from tests.cloud_jobs.lake.test_coverage import coverages

streams = st.builds(
    DeviceStream, st.sampled_from(["x", "y"]), st.sampled_from(["a", "b", "a.b"]), st.sampled_from([7, 1 << 62])
)
known = st.dictionaries(streams, coverages(), max_size=4)


@given(st.lists(known, max_size=4))
def test_the_union_of_rows_is_the_union_of_the_coverages(parts: list[dict[DeviceStream, Coverage]]) -> None:
    expected: dict[DeviceStream, Coverage] = {}
    for part in parts:
        for stream, coverage in part.items():
            expected[stream] = expected.get(stream, Coverage()) | coverage
    united = unite([to_rows(part) for part in parts])
    assert united.schema == COVERAGE_ROWS
    assert list(from_rows(united)) == sorted(expected.items())
