"""The month that is hard to bill has every difficulty that it is for, and its true documents add up to what is owed."""

import json
import tomllib
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise

import pytest
from pydantic import BaseModel

from cloud_jobs.billing.contracts import Account, ExchangeRate, LegalEntity, Tariff
from geo.spatial import fences_from_geojson
from tests.month import (
    PERIODS,
    Adjust,
    ArrivedBatch,
    Close,
    Decide,
    Deliver,
    ExpectedBilling,
    Issue,
    Month,
    Publish,
    expected_billing,
    hard_month,
)
from waybill.record import decode

MODELS: dict[str, type[BaseModel]] = {
    "legal_entity": LegalEntity,
    "tariff": Tariff,
    "account": Account,
    "exchange_rate": ExchangeRate,
}


@pytest.fixture(scope="module")
def month() -> Month:
    return hard_month()


@pytest.fixture(scope="module")
def expected(month: Month) -> list[ExpectedBilling]:
    return expected_billing(month)


def delivered(month: Month) -> list[ArrivedBatch]:
    return [one for step in month.steps if isinstance(step, Deliver) for one in step.deliveries]


def of(month: Month, tenant: str, device: str) -> list[ArrivedBatch]:
    return [one for one in delivered(month) if (one.tenant, one.device) == (tenant, device)]


def test_the_same_seed_gives_the_same_bytes(month: Month) -> None:
    assert hard_month() == month
    assert hard_month(16) != month
    assert month.records < 30_000


def test_every_batch_says_what_its_delivery_says(month: Month) -> None:
    journals = {journal.vehicle.key: journal for journal in month.journals}
    for one in delivered(month):
        batch = decode(one.data)
        records = journals[one.tenant, one.device].records
        assert batch.records == tuple(records[seq - 1] for seq in one.records)
        assert [seq for first, last, _ in batch.tombstones for seq in range(first, last + 1)] == list(one.lost)
        assert (batch.device, batch.head) == (one.device, one.head)
        stated = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=batch.stated_us)
        assert one.stated == min(stated, one.received_at)


def test_no_statement_is_contradicted_by_a_later_record(month: Month) -> None:
    journals = {journal.vehicle.key: journal for journal in month.journals}
    for one in delivered(month):
        stated_us = (one.stated - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
        later = journals[one.tenant, one.device].records[one.head :]
        assert all(record.device_time_us >= stated_us for record in later)


def test_batches_come_late_twice_and_out_of_order(month: Month) -> None:
    outage = [one.received_at for one in of(month, "acme", "van-1")]
    days = sorted({moment.date() for moment in outage})
    assert max(after - before for before, after in pairwise(days)) >= timedelta(days=5)
    for tenant, device in {(one.tenant, one.device) for one in delivered(month)}:
        heads = [one.head for one in of(month, tenant, device)]
        assert heads != sorted(heads)
        seqs = Counter(seq for one in of(month, tenant, device) for seq in one.records)
        assert max(seqs.values()) > 1


def test_the_models_of_billing_and_of_places_read_all_that_is_published(month: Month) -> None:
    published = [step for step in month.steps if isinstance(step, Publish)]
    for step in published:
        for kind, bodies in tomllib.loads(step.contracts, parse_float=Decimal).items():
            for body in bodies:
                MODELS[kind].model_validate(body)
        features = [json.loads(text) for text in step.fences]
        collection = json.dumps({"type": "FeatureCollection", "features": features})
        read = fences_from_geojson(collection)
        assert len([*read.fences, *read.gates]) == len(features)
    assert sum(bool(step.contracts) for step in published) == 4
    assert sum(bool(step.fences) for step in published) == 3


def test_a_silent_device_keeps_its_payer_from_an_invoice_until_somebody_answers_for_it(
    month: Month, expected: list[ExpectedBilling]
) -> None:
    closed, issued = expected[0], expected[1]
    assert isinstance(month.steps[closed.step], Close)
    assert isinstance(month.steps[issued.step], Issue)
    assert any(isinstance(step, Decide) for step in month.steps[closed.step : issued.step])
    assert closed.states["acme"]["acme", "van-4"] == "silent"
    assert closed.states["acme"]["acme", "van-3"] == "complete with declared loss"
    assert closed.final == ("kaze",)
    assert issued.states["acme"]["acme", "van-4"] == "closed by decision"
    assert issued.final == ("acme", "kaze")


def test_each_thing_that_becomes_known_late_is_a_note_and_nothing_new_is_none(
    month: Month, expected: list[ExpectedBilling]
) -> None:
    said = [[(one.payer, one.kind, one.number) for one in step.documents] for step in expected]
    assert said == [
        [],
        [("acme", "invoice", 1), ("kaze", "invoice", 1)],
        [],
        [("acme", "debit note", 2)],
        [("acme", "credit note", 3)],
        [("acme", "debit note", 4), ("kaze", "credit note", 2)],
        [("kaze", "debit note", 3)],
        [],
    ]
    assert all(isinstance(month.steps[step.step], Adjust) for step in expected[2:])


def test_what_is_posted_is_what_is_owed_whenever_it_was_adjusted(expected: list[ExpectedBilling]) -> None:
    posted = Counter[str]()
    for step in expected[1:]:
        for document in step.documents:
            posted[document.payer] += document.gross_minor
        assert posted == {payer: step.owed[payer].gross_minor for payer in PERIODS}
