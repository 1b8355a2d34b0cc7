"""Which files a reader opens: those whose bounds may hold what it asks for."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.lake.data_files import StoredFiles

spans = st.tuples(st.integers(0, 40), st.integers(0, 6)).map(lambda one: (one[0], one[0] + one[1]))


def apart(found: list[tuple[int, int]]) -> list[tuple[int, int]]:
    kept: list[tuple[int, int]] = []
    for low, high in sorted(found):
        if not kept or low > kept[-1][1]:
            kept.append((low, high))
    return kept


@given(st.lists(spans | st.none(), max_size=8), st.lists(spans, max_size=6).map(apart))
def test_a_file_is_opened_if_its_bounds_meet_a_range_or_are_not_known(
    bounds: list[tuple[int, int] | None], ranges: list[tuple[int, int]]
) -> None:
    paths = [str(at) for at in range(len(bounds))]
    ends = {name: [one and one[at] for one in bounds] for at, name in enumerate(("min.seq", "max.seq"))}
    columns = {"path": pa.array(paths, pa.string())} | {name: pa.array(ends[name], pa.int64()) for name in ends}
    found = StoredFiles("records", pa.table(columns)).within("seq", ranges).paths
    meets = [one is None or any(one[0] <= high and low <= one[1] for low, high in ranges) for one in bounds]
    assert found == [path for path, met in zip(paths, meets, strict=True) if met]


def test_without_bounds_every_file_is_opened() -> None:
    stored = StoredFiles("records", pa.table({"path": ["a", "b"]}))
    assert stored.within("seq", [(1, 2)]).paths == ["a", "b"]
