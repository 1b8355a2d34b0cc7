"""Of each key the row that was committed last is in force, whatever the order and however often a row comes."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.errors import LakeError
from cloud_jobs.lake.schemas import USAGE
from cloud_jobs.lake.snapshot_reads import rows_in_force
from tests.cloud_jobs.lake.metered import HOUR
from tests.usage_rows import usage_row

Key = tuple[str, str, str, int]
KEYS = st.tuples(st.sampled_from(["s", "t"]), st.sampled_from("ab"), st.sampled_from(["", "*", "z"]), st.integers(1, 4))


def table(keys: list[Key], dice: Random) -> pa.Table:
    made = [
        usage_row(device, HOUR, zone, tenant=tenant, commit_number=number, distance_mm=[number, 0, 0, 7])
        for tenant, device, zone, number in keys
    ]
    dice.shuffle(made)
    at = dice.randint(0, len(made))
    # of several files, as a reader has them
    return pa.concat_tables(pa.Table.from_pylist(part, schema=USAGE) for part in (made[:at], made[at:]))


@given(st.lists(KEYS, max_size=30), st.randoms())
def test_of_each_key_the_row_of_the_highest_commit_is_in_force_in_any_order(keys: list[Key], dice: Random) -> None:
    found = rows_in_force(table(keys, dice)).to_pylist()
    expected = {key: max(n for *other, n in keys if (*other,) == key) for key in {key[:3] for key in keys}}
    assert [((row["tenant"], row["device"], row["zone"]), row["commit_number"]) for row in found] == sorted(
        expected.items()
    )
    assert [row["distance_mm"] for row in found] == [[row["commit_number"], 0, 0, 7] for row in found]


def test_two_results_of_one_commit_are_no_usage() -> None:
    rows = [usage_row("d", HOUR, distance_mm=1), usage_row("d", HOUR, distance_mm=2)]
    with pytest.raises(LakeError, match=r"acme/d at 2026-01-05T12:00:00\+00:00 in zone '' was computed twice"):
        rows_in_force(pa.Table.from_pylist(rows, USAGE))
    after = usage_row("d", HOUR, distance_mm=3, commit_number=2)
    assert rows_in_force(pa.Table.from_pylist([*rows, after], USAGE)).to_pylist()[0]["distance_mm"][0] == 3
