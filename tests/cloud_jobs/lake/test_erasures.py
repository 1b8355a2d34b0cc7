"""Which positions are erased: declared once, in order, and found for each device that they are of."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cloud_jobs.errors import LakeError
from cloud_jobs.lake.erasures import Erasure, Erasures, declare_erasure, read_erasures
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


def test_an_erasure_that_says_nothing_new_is_not_declared_again(tmp_path: Path) -> None:
    lake = new_lake(tmp_path)
    assert declare_erasure(lake, Erasure("acme", None, NOW), NOW)
    assert not declare_erasure(lake, Erasure("acme", "d", NOW - DAY), NOW)
    assert declare_erasure(lake, Erasure("acme", "d", NOW + DAY), NOW + DAY)
    assert read_erasures(lake).before("acme", "d") == NOW + DAY


def test_an_erasure_of_positions_to_come_is_refused(tmp_path: Path) -> None:
    lake = new_lake(tmp_path)
    with pytest.raises(LakeError, match="in the future"):
        declare_erasure(lake, Erasure("acme", "d", NOW + DAY), NOW)
    assert not read_erasures(lake)


def test_erasures_that_are_declared_at_once_are_numbered_in_the_order_of_their_commits(tmp_path: Path) -> None:
    lake = new_lake(tmp_path)
    with ThreadPoolExecutor(3) as threads:
        made = threads.map(lambda name: declare_erasure(lake, Erasure("acme", name, NOW), NOW), "abc")
        assert list(made) == [True] * 3
    assert sorted(lake.rows("erasures", ["number"])["number"].to_pylist()) == [1, 2, 3]
