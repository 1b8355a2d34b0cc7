"""A lake whose records came in as the ingest commits them, and whose usage the job computed, to be tampered with."""

from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from pyspark.sql import SparkSession

from cloud_jobs.lake.coverage import Coverage, DeviceStream
from cloud_jobs.lake.tables import Lake
from cloud_jobs.usage.job import compute_usage
from geo.reference.messages import Kind
from geo.spatial import TrackSettings
from tests.cloud_jobs.billing.contracts.makers import account, device, kind_of, legal_entity, price, tariff
from tests.cloud_jobs.billing.register.billed_lake import BilledLake
from tests.cloud_jobs.publications import row_of
from tests.new_lakes import copy_of
from tests.system.lake_of_fixes import LakeFix, cover, ingest, lake_of, square
from waybill.record import IntervalSet

TEN = datetime(2026, 1, 5, 10, tzinfo=UTC)
JANUARY = (date(2026, 1, 1), date(2026, 1, 31))
STATED = datetime(2026, 2, 2, tzinfo=UTC)
FIXES = 60
DEVICES = {"eu-1": "eu", "eu-2": "eu", "us-1": "us", "us-9": "us"}
"""Of each device its region; us-9 is nobody's."""
# what is little is computed in this process: of Spark only the number of its cores is asked for
_ONE_CORE = cast("SparkSession", SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=1)))


def metered_lake(folder: Path) -> BilledLake:
    """Four devices that drove for an hour and an event each; acme (with a child) pays for two of them, beta for one."""
    copy_of(make_metered_lake, folder)
    return BilledLake(Lake(folder))


def issued_lake(folder: Path) -> BilledLake:
    """That lake, January closed and issued."""
    copy_of(_issued, folder)
    return BilledLake(Lake(folder))


def _issued(folder: Path) -> None:
    made = metered_lake(folder)
    made.close("one", days=JANUARY)
    assert len(made.issue("clerk", JANUARY).documents) == 2


def make_metered_lake(folder: Path) -> BilledLake:
    lake = lake_of(folder, [square("square")])
    for name, region in DEVICES.items():
        ingest(lake, _drive(name, region))
        state(lake, name)
    billed = BilledLake(lake)
    publish(
        billed,
        legal_entity(),
        tariff(price("0.45"), price("0.20", zone="square"), price("0.05", meter="event", unit="each")),
        account("acme", device("eu-1", tenant="acme")),
        account("acme-west", device("us-1", tenant="acme"), parent="acme"),
        account("beta", device("eu-2", tenant="acme")),
    )
    meter(billed)
    return billed


def state(lake: Any, name: str, until: datetime = STATED, count: int = FIXES + 1) -> None:
    """One commit of the ingest: a device states what it has until a moment."""
    until_us = int(until.timestamp() * 1_000_000)
    known = Coverage(
        IntervalSet([(1, count)]), head=count, stated_us=until_us, stated_head=count, complete_until_us=until_us
    )
    cover(lake, {DeviceStream("acme", name, 7): known})


def publish(billed: BilledLake, *bodies: dict[str, Any]) -> None:
    there = billed.lake.rows("reference", ["publication_id"]).num_rows
    commit = 1 + max(billed.lake.rows("reference", ["commit_number"])["commit_number"].to_pylist(), default=0)
    rows = [row_of(*_named(body), body, there + at, commit_number=commit) for at, body in enumerate(bodies)]
    billed.lake.append("reference", rows)


def meter(billed: BilledLake, tracks: TrackSettings | None = None) -> None:
    compute_usage(_ONE_CORE, billed.lake, tracks or TrackSettings())


def _drive(name: str, region: str) -> Iterable[LakeFix]:
    for number in range(1, FIXES + 1):
        yield LakeFix(name, number, TEN + timedelta(minutes=number), 0.005, number / 3_000, region)
    yield LakeFix(name, FIXES + 1, TEN + timedelta(minutes=30), 0.0, 0.0, region, kind="event")


def _named(body: dict[str, Any]) -> tuple[Kind, str]:
    if body.get("type") == "Feature":
        return "fence", body["properties"]["id"]
    return kind_of(body), body["id"]
