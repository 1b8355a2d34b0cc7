"""Accounts that end: in the period of the end they are there, in a later one they are nobody."""

from __future__ import annotations

from datetime import UTC, datetime

from cloud_jobs.billing.contracts import MissingParent
from cloud_jobs.billing.contracts.published import micros
from tests.cloud_jobs.billing.contracts.makers import (
    APRIL,
    MARCH,
    account,
    contracts,
    device,
    faults_of,
    legal_entity,
    tariff,
)

MID_MARCH = "2026-03-20T00:00:00Z"
START, END = micros(MARCH.start), micros(MARCH.end)
MID = micros(datetime(2026, 3, 20, tzinfo=UTC))
SOLD = (legal_entity(), tariff())


def test_an_account_that_ended_is_in_the_period_of_its_end_and_in_no_later_one() -> None:
    made = contracts(*SOLD, account("acme", device(), effective_until=MID_MARCH), account("beta", device("van-2")))
    contract = made.contract_of("acme", MARCH)
    assert [(one.begin_us, one.end_us) for one in contract.assigned] == [(START, MID)]
    assert contract.accounts[0].times == ((START, MID),)
    assert made.payers(MARCH.start, MARCH.end) == ["acme", "beta"]
    assert made.payers(APRIL.start, APRIL.end) == ["beta"]
    (fault,) = faults_of(made, period=APRIL)
    assert "is not in force in the period" in str(fault)


def test_a_parent_that_ends_before_its_child_is_missing_from_then_on() -> None:
    made = contracts(*SOLD, account(effective_until=MID_MARCH), account("child", parent="acme"))
    (fault,) = faults_of(made)
    assert isinstance(fault, MissingParent)
    assert MID_MARCH in str(fault)
    assert made.without_payer(MARCH.start) == []
    assert [type(one) for one in made.without_payer(APRIL.start)] == [MissingParent]
    both = account("child", parent="acme", effective_until=MID_MARCH)
    assert faults_of(contracts(*SOLD, account(effective_until=MID_MARCH), both)) == []
