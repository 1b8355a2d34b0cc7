"""The closing as a Spark job: executors write the same lines, certificates and sums as one process does."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cloud_jobs.billing.documents import charges_of
from cloud_jobs.billing.register.documents_of import issued_document
from cloud_jobs.lake.coverage import Coverage, DeviceStream
from cloud_jobs.usage.job import compute_usage
from geo.spatial import TrackSettings
from tests.cloud_jobs.billing.contracts.makers import account, device, kind_of, legal_entity, price, tariff
from tests.cloud_jobs.billing.register.billed_lake import BilledLake
from tests.cloud_jobs.publications import row_of
from tests.system.lake_of_fixes import LakeFix, cover, ingest, lake_of, square
from waybill.record import IntervalSet

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

TEN = datetime(2026, 1, 5, 10, tzinfo=UTC)
JANUARY = (date(2026, 1, 1), date(2026, 1, 31))


def test_what_was_ingested_and_metered_is_closed_issued_and_shown(spark: SparkSession, tmp_path: Path) -> None:
    lake = lake_of(tmp_path, [square("square")])
    drive = [LakeFix("eu-1", number, TEN + timedelta(minutes=number), 0.005, number / 3_000) for number in range(1, 61)]
    ingest(lake, drive)
    compute_usage(spark, lake, TrackSettings())
    billed = BilledLake(lake)
    prices = tariff(price("0.45"), price("0.30", zone="*"))
    bodies = (legal_entity(), prices, account("acme", device("eu-1", tenant="acme")))
    lake.append("reference", [row_of(kind_of(body), body["id"], body, 50 + at) for at, body in enumerate(bodies)])
    # the fixes were received, and the device says nothing of the rest of the month
    (silent,) = billed.close("silent", days=JANUARY)
    assert (silent.outcome.value, silent.net_minor > 0) == ("provisional", True)
    end_us = int(datetime(2026, 2, 1, tzinfo=UTC).timestamp() * 1_000_000)
    state = Coverage(IntervalSet([(1, 60)]), head=60, stated_us=end_us, stated_head=60, complete_until_us=end_us)
    cover(lake, {DeviceStream("acme", "eu-1", 7): state})
    compute_usage(spark, lake, TrackSettings())
    (final,) = billed.close("final", days=JANUARY)
    assert (final.outcome.value, final.net_minor, final.reasons) == ("final", silent.net_minor, ())
    (invoice,) = billed.issue("clerk", days=JANUARY).documents
    made = issued_document(billed.register, invoice.number)
    used_of = {charge.key.zone: charge.quantity for charge in charges_of(made)}
    metered: Counter[str] = Counter()
    for row in lake.rows("usage").to_pylist():
        metered[row["zone"]] += sum(row["distance_mm"])
    assert used_of == {zone: amount for zone, amount in metered.items() if amount}
    assert len(used_of) == 2, "in the square and outside"
