"""A lake in a real object store: the same tables, one writer of two, and a store that is lost on the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloud_jobs.errors import Fenced, LakeError, LocationError
from cloud_jobs.lake.location import Location, S3Access
from cloud_jobs.lake.tables import Lake
from deploy.local import ObjectStore
from tests.cloud_jobs.ingest.centre import batch, check, coverage, new_ingest, take_in
from tests.system.lake_in_store import place
from waybill.record import IntervalSet, Tombstone

pytestmark = [pytest.mark.system, pytest.mark.own_servers, pytest.mark.timeout(300)]


@pytest.fixture
def lake(store: ObjectStore, request: pytest.FixtureRequest) -> Lake:
    made = Lake(place(store, f"lake-{abs(hash(request.node.name))}/of.it"))
    made.create()
    return made


def test_records_coverage_and_what_came_again_are_as_in_a_folder(lake: Lake) -> None:
    writer = new_ingest(lake)
    take_in(lake, writer, [batch(1, 2, 3), batch(2, 3, 4)], [batch(8, head=9, lost=(Tombstone(6, 7, "quota"),))])
    take_in(lake, writer, [batch(3, word="y"), batch(5, day=1)])
    assert check(lake) == IntervalSet([(1, 5), (8, 8)])
    known = coverage(lake)
    assert (known.missing, known.declared_lost) == (IntervalSet([(9, 9)]), IntervalSet([(6, 7)]))
    (conflict,) = lake.rows("quarantine").to_pylist()
    assert (conflict["cause"], conflict["seq"]) == ("conflict", 3)
    lake.open("records").optimize.compact()
    take_in(lake, new_ingest(lake), [batch(5, 6, day=1)])
    assert check(lake) == IntervalSet([(1, 6), (8, 8)])


def test_of_two_ingests_the_one_that_was_overtaken_stops(lake: Lake) -> None:
    first, second = new_ingest(lake), new_ingest(lake)
    take_in(lake, second, [batch(1, 2)])
    with pytest.raises(Fenced):
        take_in(lake, first, [batch(1, 2)])
    assert check(lake) == IntervalSet([(1, 2)])


def test_a_bucket_a_table_or_a_right_that_is_not_there_is_named(store: ObjectStore, tmp_path: Path) -> None:
    with pytest.raises(LakeError, match=r"there is no table 'records' in the lake s3://lake/empty"):
        Lake(place(store, "empty")).open("records")
    access = place(store, "x").access
    with pytest.raises(LocationError, match="there is no bucket 'another'"):
        Lake(Location("another/prefix", access)).create()
    wrong = tmp_path / "credentials"
    wrong.write_text("[default]\naws_access_key_id = someone\naws_secret_access_key = nothing\n")
    refused = Location.of("s3://lake/x", S3Access(endpoint=store.endpoint, credentials_file=wrong), {})
    with pytest.raises(LakeError, match=r"cannot be read: .*No user exists with the provided access key"):
        Lake(refused).rows("records")
