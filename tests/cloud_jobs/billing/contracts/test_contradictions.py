"""Versions that are right alone and not beside others block those who use them, and nobody else."""

from __future__ import annotations

import pytest

from cloud_jobs.billing.contracts import OtherZoneThanBefore, SharedNumberPrefix
from tests.cloud_jobs.billing.contracts.makers import (
    APRIL,
    MARCH,
    account,
    contracts,
    device,
    faults_of,
    legal_entity,
    payer,
    tariff,
)

MID_MARCH, MID_APRIL = "2026-03-20T00:00:00Z", "2026-04-10T00:00:00Z"
WHOLE = (legal_entity(), tariff(), account("acme", device()))


@pytest.mark.parametrize("since", ["2026-03-31T22:00:00Z", MID_APRIL, "2026-04-01T07:00:00Z"])
def test_a_payer_keeps_its_time_zone_and_a_version_with_another_one_blocks_what_it_is_of(since: str) -> None:
    """Else hours would be in two periods, or in none: wherever the version begins."""
    later = account("acme", device(), effective_from=since, payer=payer(time_zone="America/Los_Angeles"))
    made = contracts(*WHOLE, later, account("beta"))
    assert faults_of(made, period=MARCH) == []
    assert made.period_of("acme", APRIL.first_day, APRIL.last_day) == APRIL
    (fault,) = faults_of(made, period=APRIL)
    assert isinstance(fault, OtherZoneThanBefore)
    assert "end its devices then, and begin a new account that has them from there on" in str(fault)
    assert faults_of(made, "beta", APRIL) == []
    (again,) = made.contradictions()
    assert str(again) == str(fault)


def test_two_sellers_with_one_prefix_of_numbers_block_their_payers_and_no_others() -> None:
    others = [
        legal_entity(id="waybill-us"),
        legal_entity(id="waybill-jp", number_prefix="JP-"),
        account("beta", payer=payer(legal_entity="waybill-us")),
        account("kaze", payer=payer(legal_entity="waybill-jp")),
    ]
    made = contracts(*WHOLE, *others)
    for name in ("acme", "beta"):
        (fault,) = faults_of(made, name)
        assert isinstance(fault, SharedNumberPrefix)
        assert "the legal entities 'waybill-eu' and 'waybill-us' have one number_prefix, 'WB-EU-'" in str(fault)
    assert faults_of(made, "kaze") == []
