"""Canaries never touch a customer's bill: closings and documents are the same bytes with them in the lake."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cloud_jobs.lake.tables import Lake
from gateway.canary.config import CanaryScript, CanarySettings
from gateway.canary.probes import canary_name
from gateway.canary.reference import bill_fault, contracts_text, fence_text
from tests.gateway.canary.canaries import canary_settings
from tests.month import ArrivedBatch, Deliver, Month, Publish, hard_month
from tests.system.billed_month import MARCH, Centre, billed
from tests.system.test_month_bytes import bill
from waybill.record import Batch, Body, Canary, Position, Record, encode

pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.own_servers, pytest.mark.timeout(900)]

PROBES = 12
BEGIN = datetime(2026, 3, 10, 12, tzinfo=UTC)
EPOCH = 77
SNAPSHOT = re.compile(r"by snapshot \d+-[0-9a-f]+")


def probes(settings: CanarySettings, count: int) -> Iterator[ArrivedBatch]:
    """What a canary sends: a batch for each probe, as its region received it."""
    script, seq = CanaryScript(settings.script), 0
    first = script.number_at(round(BEGIN.timestamp() * 1000))
    for number in range(first, first + count):
        begins_ms = script.begins_ms(number)
        bodies: list[tuple[int, Body]] = [(begins_ms, Canary(id=canary_name(settings.device, number)))]
        bodies += [
            (begins_ms + fix.after_ms, Position(latitude=fix.latitude, longitude=fix.longitude))
            for fix in script.fixes(number)
        ]
        records = tuple(Record(seq + at, t_ms * 1000, body) for at, (t_ms, body) in enumerate(bodies, 1))
        seq += len(records)
        received = datetime.fromtimestamp(bodies[-1][0] / 1000, UTC) + timedelta(seconds=1)
        end_us = int(datetime(2026, 4, 2, tzinfo=UTC).timestamp() * 1_000_000)
        data = encode(Batch(settings.device, EPOCH, seq, records, (), end_us if number == first + count - 1 else 0))
        seqs = tuple(record.seq for record in records)
        yield ArrivedBatch(received, settings.tenant, settings.device, "eu", data, seqs, (), seq, received)


def with_canary(month: Month, settings: CanarySettings) -> Month:
    """The same month, in which a canary is published too, and its batches come among those of the customers."""
    publish, deliver, *rest = month.steps
    assert isinstance(publish, Publish)
    assert isinstance(deliver, Deliver)
    (feature,) = json.loads(fence_text(settings))["features"]
    contracts = f"{publish.contracts}\n{contracts_text(settings, datetime(2026, 3, 1, tzinfo=UTC))}"
    more = Publish(publish.at, contracts, (*publish.fences, json.dumps(feature)))
    half = len(deliver.deliveries) // 2
    batches = (*deliver.deliveries[:half], *probes(settings, PROBES), *deliver.deliveries[half:])
    return Month(month.journals, (more, Deliver(deliver.at, batches), *rest))


def without_the_lake(row: str) -> str:
    """A row without what it says of the lake as a whole.

    The records of a payer are counted over the days of all payers of a run, whatever their time zones: one more payer,
    in UTC, widens them. A note names the snapshot that it was made at.
    """
    said = json.loads(SNAPSHOT.sub("by snapshot", row))
    if "control_totals" in said:
        said["control_totals"] = [one for one in json.loads(said["control_totals"]) if one["name"] != "records metered"]
    return json.dumps(said, sort_keys=True)


def test_a_customer_s_closings_and_documents_are_the_same_bytes_with_canaries_in_the_lake(tmp_path: Path) -> None:
    month, settings = hard_month(15), canary_settings(tmp_path)
    plain, beside = Centre(Lake(tmp_path / "plain")), Centre(Lake(tmp_path / "beside"))
    bill(plain, month, None)
    bill(beside, with_canary(month, settings), None)
    wanted, found = billed(plain), billed(beside)
    assert all(wanted.values())
    for table, rows in wanted.items():
        customers = [without_the_lake(row) for row in found[table] if settings.name not in row]
        assert customers == [without_the_lake(row) for row in rows], table
        # a month that nobody has closed is not issued
        is_billed = any(settings.name in row for row in found[table])
        assert is_billed == (table != "documents"), table
    closing = [one for one in beside.register.closings(*MARCH) if one.key.payer == settings.name][-1]
    assert bill_fault(PROBES, closing.net_minor, closing.tax_minor, "EUR") == ""
