"""A snapshot names commits, each state of the lake once, whoever takes it and whatever the clocks say."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Barrier

import pytest

from cloud_jobs.errors import LakeError
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.erasures import Erasure, declare_erasure
from cloud_jobs.lake.schemas import USAGE
from cloud_jobs.lake.snapshot_reads import usage_rows
from cloud_jobs.lake.snapshots import LakeState, Snapshot, read_snapshot, snapshots, take_snapshot
from cloud_jobs.lake.tables import Lake
from tests.cloud_jobs.ingest.centre import batch, new_ingest, take_in
from tests.cloud_jobs.lake.metered import DEVICE, HOUR, meter
from tests.cloud_jobs.publications import row_of
from tests.new_lakes import new_lake

NOW = datetime(2026, 2, 1, tzinfo=UTC)
LATER = NOW + timedelta(days=1)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = new_lake(tmp_path)
    take_in(made, new_ingest(made), [batch(1, 2)])
    return made


def test_a_lake_that_has_not_changed_is_the_same_snapshot(lake: Lake) -> None:
    one = take_snapshot(lake, NOW)
    assert take_snapshot(lake, LATER) == one
    assert snapshots(lake) == [one]
    assert read_snapshot(lake, one.id) == one
    assert (one.number, one.covers, one.ingest_number) == (1, 0, 1)


def test_whatever_a_bill_is_made_of_makes_another_snapshot(lake: Lake) -> None:
    changes = [
        lambda: take_in(lake, new_ingest(lake), [batch(3)]),
        lambda: meter(lake, {}),
        lambda: lake.append("reference", [row_of("tariff", "t", "{}", 0)]),
        lambda: declare_erasure(lake, Erasure("acme", "d", NOW), NOW),
        # another content of a record that is known: the quarantine has it
        lambda: take_in(lake, new_ingest(lake), [batch(3, word="other")]),
    ]
    found = [take_snapshot(lake, NOW)]
    for change in changes:
        change()
        found.append(take_snapshot(lake, NOW))
    assert [one.number for one in found] == [1, 2, 3, 4, 5, 6]
    assert len({one.digest() for one in found}) == 6
    assert [one.id for one in snapshots(lake)] == [one.id for one in found]
    assert found[-1].quarantine_commit > found[0].quarantine_commit


def test_takers_at_one_moment_get_one_snapshot(lake: Lake) -> None:
    barrier = Barrier(4)

    def take(at: int) -> Snapshot:
        barrier.wait()
        return take_snapshot(lake, NOW + timedelta(seconds=at))

    with ThreadPoolExecutor(4) as threads:
        found = {*threads.map(take, range(4))}
    assert found == {*snapshots(lake)}
    assert len(found) == 1


def test_an_id_that_nobody_took_is_refused_with_those_that_there_are(lake: Lake) -> None:
    one = take_snapshot(lake, NOW)
    with pytest.raises(LakeError, match=f"no snapshot '7-abc' was taken; the newest are: {one.id}"):
        read_snapshot(lake, "7-abc")


def test_usage_is_that_of_the_commits_that_were_made_by_then_whatever_their_clocks_said(lake: Lake) -> None:
    meter(lake, {"computed_at": LATER, "zone": "a"}, {"zone": "b"})
    one = take_snapshot(lake, NOW)
    # by a host whose clock is a day behind: its row is the newer one all the same
    meter(lake, {"computed_at": NOW - timedelta(days=1), "zone": "a"})
    two = take_snapshot(lake, NOW)
    assert commits(lake, one) == {"a": 1, "b": 1}
    assert commits(lake, two) == {"a": 2, "b": 1}


def commits(lake: Lake, snapshot: LakeState) -> dict[str, int]:
    rows = usage_rows(lake, snapshot, [DEVICE], HOUR, HOUR).to_pylist()
    return {row["zone"]: row["commit_number"] for row in rows}


def test_usage_is_of_the_hours_and_the_devices_that_are_asked_for(lake: Lake) -> None:
    hours = [HOUR + timedelta(hours=at) for at in range(-2, 3)]
    others = [("acme", "e"), ("zeta", "d"), ("zeta", "e")]
    meter(
        lake, *({"hour": hour} for hour in hours), *({"tenant": tenant, "device": device} for tenant, device in others)
    )
    one = take_snapshot(lake, NOW)
    half = HOUR + timedelta(minutes=30)
    found = usage_rows(lake, one, [DEVICE], half, half + timedelta(hours=1))
    assert [hour.astimezone(UTC) for hour in found["hour"].to_pylist()] == hours[2:4]
    asked = [TenantDevice("acme", "e"), TenantDevice("zeta", "d")]
    found = usage_rows(lake, one, asked, HOUR, HOUR)
    assert list(zip(found["tenant"].to_pylist(), found["device"].to_pylist(), strict=True)) == asked
    assert found.schema.equals(USAGE)
