"""Which positions are erased: declared once, in order, and found for each device that they are of."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.lake.erasures import Erasure, Erasures, declare_erasure, is_erased
from cloud_jobs.lake.schemas import RECORDS
from tests.cloud_jobs.ingest.centre import new_lake

DAY = timedelta(days=1)
NOW = datetime(2026, 3, 1, tzinfo=UTC)


def test_of_all_that_are_of_a_device_the_latest_boundary_holds() -> None:
    declared = [Erasure("acme", "d", NOW), Erasure("acme", "d", NOW - DAY), Erasure("acme", None, NOW - DAY)]
    erasures = Erasures([*declared, Erasure(None, None, NOW - 2 * DAY)])
    assert erasures.before("acme", "d") == NOW
    assert erasures.before("acme", "e") == NOW - DAY
    assert erasures.before("other", "d") == erasures.before(None, "d") == NOW - 2 * DAY
    assert Erasures([]).before("acme", "d") is None


def test_a_request_is_declared_although_positions_are_erased_and_says_nothing_of_other_times(tmp_path: Path) -> None:
    lake = new_lake(tmp_path)
    assert declare_erasure(lake, Erasure("acme", "d", NOW), NOW)
    assert declare_erasure(lake, Erasure("acme", "d", NOW - DAY, NOW - 3 * DAY), NOW)
    assert not declare_erasure(lake, Erasure("acme", "d", NOW - DAY, NOW - 2 * DAY), NOW)
    assert declare_erasure(lake, Erasure("acme", "d", NOW - DAY, NOW - 4 * DAY), NOW)
    assert declare_erasure(lake, Erasure("acme", "e", NOW, NOW - DAY), NOW)
    assert declare_erasure(lake, Erasure("acme", "e", NOW), NOW), "a request says nothing of what was before it"


def test_erasures_that_are_declared_at_once_are_numbered_in_the_order_of_their_commits(tmp_path: Path) -> None:
    lake = new_lake(tmp_path)
    with ThreadPoolExecutor(3) as threads:
        made = threads.map(lambda name: declare_erasure(lake, Erasure("acme", name, NOW), NOW), "abc")
        assert list(made) == [True] * 3
    assert sorted(lake.rows("erasures", ["number"])["number"].to_pylist()) == [1, 2, 3]


names, moments = st.sampled_from("abc"), st.integers(0, 4).map(lambda days: NOW + days * DAY)
requests = st.builds(Erasure, names, names, moments, moments)
declared_ones = st.builds(Erasure, st.none() | names, st.none() | names, moments, st.none()) | requests
rows_of_devices = st.lists(
    st.tuples(names, names, st.sampled_from(["position", "signal"]), moments, st.none() | moments, st.booleans())
)


@given(st.lists(declared_ones, max_size=6), rows_of_devices)
def test_a_record_is_erased_if_one_of_the_erasures_is_of_its_device_and_later_than_it(
    erasures: list[Erasure], records: list[tuple[str, str, str, datetime, datetime | None, bool]]
) -> None:
    columns = ("tenant", "device", "kind", "device_time", "received_at", "device_date")
    schema = pa.schema([RECORDS.field(name) for name in columns])
    rows: list[dict[str, Any]] = [
        dict(zip(columns, (*one[:5], one[3].date() if one[5] else None), strict=True)) for one in records
    ]
    expected = [
        any(
            tenant in (None, row["tenant"])
            and device in (None, row["device"])
            and moment < before
            # a data subject asks for records of all kinds
            and (row["kind"] == "position" if since is None else since <= moment)
            for tenant, device, before, since in erasures
        )
        for row in rows
        for moment in [row["device_time"] if row["device_date"] else row["received_at"] or row["device_time"]]
    ]
    assert is_erased(pa.Table.from_pylist(rows, schema=schema), erasures).to_pylist() == expected
