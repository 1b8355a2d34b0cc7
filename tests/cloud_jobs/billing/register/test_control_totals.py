"""What is tampered with between the records and the charges is named, and stops the issue of those whom it concerns."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cloud_jobs.billing.rating import rate
from cloud_jobs.billing.register.closing import Closing, ClosingState
from cloud_jobs.billing.register.control_totals import seq_counts
from cloud_jobs.billing.register.errors import Blocked
from cloud_jobs.lake.coverage import SeqRanges
from cloud_jobs.lake.erasures import Erasure, declare_erasure
from tests.cloud_jobs.billing.register.billed_lake import NOW, BilledLake
from tests.cloud_jobs.billing.register.metered_lake import FIXES, JANUARY, TEN, meter, metered_lake, state
from tests.system.lake_of_fixes import LakeFix, ingest
from waybill.record import IntervalSet


@pytest.fixture
def metered(tmp_path: Path) -> BilledLake:
    return metered_lake(tmp_path)


def close(billed: BilledLake, name: str = "one") -> dict[str, Closing]:
    return {one.key.payer: one for one in billed.close(name, days=JANUARY)}


def assert_only_acme_is_refused(billed: BilledLake) -> None:
    done = billed.issue("clerk", JANUARY)
    assert [one.key.payer for one in done.documents] == ["beta"]
    (refused,) = done.refused
    assert isinstance(refused, Blocked)
    assert refused.payer == "acme"


def row_in_force(billed: BilledLake, device: str, zone: str) -> dict[str, Any]:
    row: dict[str, Any]
    (row,) = [
        one
        for one in billed.lake.rows("usage").to_pylist()
        if (one["device"], one["zone"], one["hour"]) == (device, zone, TEN)
    ]
    return row


def test_what_nobody_tampered_with_is_final_and_every_record_is_counted(metered: BilledLake) -> None:
    found = close(metered)
    assert {one.outcome for one in found.values()} == {ClosingState.FINAL}, [one.reasons for one in found.values()]
    totals = {(one["name"], one["place"]): one for one in json.loads(found["acme"].control_totals)}
    records = totals["records metered", "acme"]
    assert (records["expected"], records["found"]) == (122, 122)
    assert len(metered.issue("clerk", JANUARY).documents) == 2


def test_the_systems_own_events_are_charged_to_nobody_and_what_was_counted_still_agrees(metered: BilledLake) -> None:
    before = close(metered)
    own = [
        LakeFix("eu-1", FIXES + 1 + n, TEN + timedelta(minutes=n), 0.0, 0.0, kind="event", name="waybill.restart")
        for n in range(1, 4)
    ]
    ingest(metered.lake, own)
    state(metered.lake, "eu-1", count=FIXES + 4)
    meter(metered)
    found = close(metered, "two")
    assert found["acme"].outcome is ClosingState.FINAL, found["acme"].reasons
    assert found["acme"].net_minor == before["acme"].net_minor
    totals = {(one["name"], one["place"]): one["found"] for one in json.loads(found["acme"].control_totals)}
    assert totals["records metered", "acme"] == 125, "they are records, and part of what is complete"
    usage = [row for row in metered.lake.rows("usage").to_pylist() if (row["device"], row["zone"]) == ("eu-1", "*")]
    assert max(sum(row["events"]) for row in usage) == 1


def test_a_record_that_is_there_twice_is_named(metered: BilledLake) -> None:
    rows = metered.lake.rows("records").to_pylist()
    (row,) = [one for one in rows if (one["device"], one["seq"]) == ("eu-1", 7)]
    metered.lake.append("records", [row])
    found = close(metered)
    assert found["acme"].outcome is ClosingState.BLOCKED
    assert found["acme"].reasons[:3] == (
        "records metered of acme: 122 instead of 123",
        "received records in the table of acme/eu-1: 62 instead of 61",
        "records metered of acme/eu-1 on 2026-01-05: 61 instead of 62",
    )
    assert_only_acme_is_refused(metered)


@pytest.mark.parametrize("column", ["events", "content_bytes"])
def test_a_row_of_usage_that_was_written_over_is_named(metered: BilledLake, column: str) -> None:
    row = row_in_force(metered, "eu-1", "*")
    metered.use(row | {column: [sum(row[column]) + 5, 0, 0, 0], "computed_at": NOW})
    reasons = close(metered)["acme"].reasons
    assert any(one.startswith(f"{column} metered of acme/eu-1 on 2026-01-05: ") for one in reasons), reasons
    assert_only_acme_is_refused(metered)


def test_a_charge_that_is_dropped_is_named(metered: BilledLake, monkeypatch: pytest.MonkeyPatch) -> None:
    def dropping(contract: Any, *more: Any, **earlier: Any) -> Any:
        rated = rate(contract, *more, **earlier)
        if contract.id != "acme":
            return rated
        return type(rated)(payer=rated.payer, currency=rated.currency, charges=rated.charges[1:], taxes=rated.taxes)

    monkeypatch.setattr("cloud_jobs.billing.register.close.rate", dropping)
    reasons = close(metered)["acme"].reasons
    assert any(one.startswith("usage charged of acme, ") for one in reasons), reasons
    assert_only_acme_is_refused(metered)


def test_of_days_with_erased_positions_nothing_is_compared(metered: BilledLake) -> None:
    declare_erasure(metered.lake, Erasure("acme", "eu-1", TEN), NOW)
    metered.lake.open("records").delete("device = 'eu-1' and seq < 9")
    (records, *_) = json.loads(close(metered)["acme"].control_totals)
    # the other device of acme is compared
    assert (records["expected"], records["found"]) == (61, 61)


@pytest.mark.parametrize(
    "sets",
    [{}, {1: IntervalSet([(1, 1)])}, {1: IntervalSet([(1, 4), (9, 9)]), 1_234_567_890_123: IntervalSet([(2, 3)])}],
)
def test_seq_ranges_are_counted_without_being_parsed(sets: dict[int, IntervalSet]) -> None:
    ranges = SeqRanges.of(sets)
    texts = pa.chunked_array([["{}", ranges.text(), '{"3":[[5,5]]}']])
    assert seq_counts(texts).tolist() == [0, ranges.count, 1]
