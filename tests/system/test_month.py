"""A month that is hard to bill, through ingest, usage on Spark and rating: every invoice and note is the truth's.

Contracts are published as TOML makes them; batches arrive late, twice and out of order, cut into micro-batches.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from cloud_jobs.billing import BillingPeriod
from cloud_jobs.billing.contracts import Assigned, Assignment, Contracts, PayerContract, contracts_of_toml
from cloud_jobs.billing.rating import (
    AccountTerms,
    Posted,
    RatedAccount,
    RatingContract,
    TariffInForce,
    cells_of_usage,
    difference,
    rate,
)
from cloud_jobs.ingest.decoding import decode_messages
from cloud_jobs.ingest.parts import write_part
from cloud_jobs.usage import groups, job
from cloud_jobs.usage.job import compute_usage
from geo.spatial import TrackSettings
from simulator.month import (
    PERIODS,
    Adjust,
    ArrivedBatch,
    Deliver,
    ExpectedBilling,
    Issue,
    Month,
    Publish,
    expected_billing,
    hard_month,
)
from simulator.truth import PostedCharge, TrueDocument, TrueKey
from simulator.truth.made import EPOCH
from tests.cloud_jobs.ingest.centre import new_ingest, new_lake
from tests.cloud_jobs.ingest.test_decoding import MESSAGES
from tests.cloud_jobs.publications import rows_of

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

SEED = 15
MESSAGES_AT_ONCE = 40
MICROSECOND = timedelta(microseconds=1)


@pytest.fixture(scope="module")
def month() -> Month:
    return hard_month(SEED)


@pytest.fixture(scope="module")
def expected(month: Month) -> dict[int, ExpectedBilling]:
    return {step.step: step for step in expected_billing(month)}


class Centre:
    """A lake and what is done to it, step by step; `posted`: the documents of each payer so far."""

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.lake = new_lake(folder)
        self.posted: dict[str, list[RatedAccount]] = {payer: [] for payer in PERIODS}
        self._ingest = new_ingest(self.lake)
        self._spark = spark
        self._published = 0

    def publish(self, step: Publish) -> None:
        stated, faults = contracts_of_toml(step.contracts)
        assert not faults
        for one in stated:
            self._store(one.kind, json.loads(one.made.model_dump_json()))
        for feature in step.fences:
            self._store("fence", json.loads(feature))

    def deliver(self, batches: Sequence[ArrivedBatch], dice: Random) -> None:
        """In micro-batches of any size, each by two tasks."""
        left = list(batches)
        while left:
            count = dice.randrange(1, 2 * MESSAGES_AT_ONCE)
            arrived, left = left[:count], left[count:]
            attempt = self._ingest.begin()
            parts = [
                write_part(self.lake, decoded, attempt.ingest_number, attempt.now)
                for task in (arrived[::2], arrived[1::2])
                if task
                for decoded in decode_messages([messages(task)])
            ]
            self._ingest.write(attempt, parts)

    def rated(self) -> dict[str, RatedAccount]:
        """What each payer owes by all that is in the lake now."""
        compute_usage(self._spark, self.lake, TrackSettings())
        agreed = Contracts(self.lake.rows("reference").to_pylist())
        days = {payer: BillingPeriod(*PERIODS[payer]) for payer in PERIODS}
        contracts = [rating_contract(agreed.contract_of(payer, days[payer])) for payer in PERIODS]
        used = cells_of_usage(contracts, self.lake.rows("usage"))
        return {
            contract.payer: rate(contract, one.cells, one.metered)
            for contract, one in zip(contracts, used, strict=True)
        }

    def post(self, payer: str, owed: RatedAccount) -> RatedAccount | None:
        """The document that makes what is posted what is owed; None for nothing."""
        document = difference(Posted.of(self.posted[payer]), owed)
        if not document.charges and not document.taxes:
            return None
        self.posted[payer].append(document)
        return document

    def _store(self, kind: Any, body: dict[str, Any]) -> None:
        self.lake.append("reference", rows_of(kind, [body], first=self._published))
        self._published += 1


def messages(batches: Sequence[ArrivedBatch]) -> pa.RecordBatch:
    rows = [
        {
            "value": one.data,
            "properties": [("tenant", one.tenant), ("region", one.region)],
            "publish_time": one.received_at,
            "topic": one.region,
            "message_id": str(at),
        }
        for at, one in enumerate(batches)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=MESSAGES)


def rating_contract(contract: PayerContract) -> RatingContract:
    """What rating takes of a payer's contract."""
    terms = [
        AccountTerms(
            account=account.id,
            tariffs=tuple(TariffInForce(EPOCH + span.begin_us * MICROSECOND, span.tariff) for span in account.spans),
            devices=tuple(assignment(one) for one in contract.assigned if one.account == account.id),
        )
        for account in contract.accounts
    ]
    return RatingContract(
        payer=contract.id,
        currency=contract.payer.currency,
        time_zone=contract.period.time_zone,
        start=contract.period.start,
        end=contract.period.end,
        vat=contract.payer.vat,
        accounts=tuple(terms),
        rates={one.currency: one.rate for one in contract.rates},
    )


def assignment(one: Assigned) -> Assignment:
    begin, end = EPOCH + one.begin_us * MICROSECOND, EPOCH + one.end_us * MICROSECOND
    return Assignment(tenant=one.tenant, device=one.device, region=one.region, begin=begin, end=end)


def said(document: RatedAccount) -> tuple[object, ...]:
    """What a document says, as far as the truth says it."""
    charges = [
        PostedCharge(
            TrueKey(
                one.key.account,
                one.key.region,
                one.key.tenant,
                one.key.device,
                one.key.kind.value,
                one.key.meter.value if one.key.meter else "",
                one.key.zone,
                one.key.window,
                one.key.price,
            ),
            one.quantity,
            one.free,
            one.amount_minor,
        )
        for one in document.charges
    ]
    taxes = [(one.category.value, Decimal(one.rate), one.taxable_minor, one.tax_minor) for one in document.taxes]
    return document.payer, document.currency, sorted(charges), taxes


def truly_said(document: TrueDocument) -> tuple[object, ...]:
    taxes = [
        (one.category, Decimal(one.rate.numerator) / one.rate.denominator, one.taxable_minor, one.tax_minor)
        for one in document.taxes
    ]
    return document.payer, document.currency, sorted(document.charges), taxes


def test_every_invoice_and_note_is_the_truth_s_to_the_last_minor_unit(
    month: Month,
    expected: dict[int, ExpectedBilling],
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job, "_FEW_FILES", 0)
    monkeypatch.setattr(groups, "_LEAST_RECORDS", 1)
    dice, centre = Random(SEED), Centre(tmp_path, spark)
    for number, step in enumerate(month.steps):
        if isinstance(step, Publish):
            centre.publish(step)
        elif isinstance(step, Deliver):
            centre.deliver(step.deliveries, dice)
        elif number in expected:
            right, owed = expected[number], centre.rated()
            assert {payer: (one.net_minor, one.gross_minor) for payer, one in owed.items()} == {
                payer: (one.net_minor, one.gross_minor) for payer, one in right.owed.items()
            }
            if isinstance(step, Issue | Adjust):
                posted = [centre.post(payer, owed[payer]) for payer in right.final]
                assert [said(one) for one in posted if one] == [truly_said(one) for one in right.documents]
    assert {payer: len(documents) for payer, documents in centre.posted.items()} == {"acme": 4, "kaze": 3}
