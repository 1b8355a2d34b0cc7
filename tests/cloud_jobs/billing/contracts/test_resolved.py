"""What holds for a payer in a period: by the versions in force at each quarter, whoever published what before."""

import json
import random
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from cloud_jobs.billing.billing_period import BillingPeriod
from cloud_jobs.billing.contracts import (
    Assigned,
    ContractFault,
    Contracts,
    Tariff,
    UnknownPayer,
)
from cloud_jobs.billing.contracts.published import micros
from geo.reference.moments import UNKNOWN_BEGINNING, beginning, ending
from tests.cloud_jobs.billing.contracts.makers import (
    APRIL,
    BERLIN,
    MARCH,
    account,
    contracts,
    device,
    exchange_rate,
    faults_of,
    legal_entity,
    payer,
    price,
    rows,
    tariff,
)

MID_MARCH, MID_APRIL = "2026-03-20T00:00:00Z", "2026-04-10T00:00:00Z"
START, END = micros(MARCH.start), micros(MARCH.end)
MID = micros(datetime(2026, 3, 20, tzinfo=UTC))
WHOLE = (legal_entity(), tariff(), account("acme", device()))


def test_a_payer_has_its_seller_its_tree_its_prices_and_its_devices() -> None:
    made = contracts(*WHOLE, account("acme-b", device("van-2"), parent="acme"), account("acme-a", parent="acme"))
    contract = made.contract_of("acme", MARCH)
    assert (contract.id, contract.seller.id, contract.payer.currency) == ("acme", "waybill-eu", "EUR")
    assert [one.id for one in contract.accounts] == ["acme", "acme-a", "acme-b"]
    assert contract.assigned == (
        Assigned("fleet", "van-1", START, END, "acme", "eu"),
        Assigned("fleet", "van-2", START, END, "acme-b", "eu"),
    )
    for one in contract.accounts:
        assert [(span.begin_us, span.end_us, span.tariff.id) for span in one.spans] == [(START, END, "standard")]
    # the digest is of what holds in the period, whatever was published before, again, later, or of others
    same = contracts(
        *WHOLE,
        account("acme-a", parent="acme"),
        account("acme-b", device("van-2"), parent="acme"),
        account("beta"),
        tariff(effective_from=MID_APRIL),
        *WHOLE,
    )
    assert same.contract_of("acme", MARCH).digest == contract.digest
    assert contracts(*WHOLE).contract_of("acme", MARCH).digest != contract.digest


def test_the_version_in_force_at_each_quarter_counts_for_tariff_and_devices() -> None:
    later = account("acme", device("van-2", region="us"), effective_from=MID_MARCH, tariff="cheap")
    contract = contracts(*WHOLE, tariff(price("0.1"), id="cheap"), later).contract_of("acme", MARCH)
    assert contract.assigned == (
        Assigned("fleet", "van-1", START, MID, "acme", "eu"),
        Assigned("fleet", "van-2", MID, END, "acme", "us"),
    )
    spans = [(span.begin_us, span.end_us, span.tariff.id) for span in contract.accounts[0].spans]
    assert spans == [(START, MID, "standard"), (MID, END, "cheap")]


def test_a_device_in_two_accounts_blocks_both_for_the_periods_that_overlap_and_no_other_payer() -> None:
    made = contracts(*WHOLE, account("beta", device(begin=MID_APRIL)), account("gamma", device("van-3")))
    assert faults_of(made, "acme", MARCH) == faults_of(made, "beta", MARCH) == faults_of(made, "gamma", APRIL) == []
    for payer_id in ("acme", "beta"):
        (fault,) = faults_of(made, payer_id, APRIL)
        assert "device 'van-1' of tenant 'fleet' is in account 'acme' and in account 'beta'" in str(fault)
        assert "from 2026-04-10T00:00:00Z on; end one of the two assignments" in str(fault)


def bad(body: dict[str, Any]) -> dict[str, Any]:
    return body | {"colour": "red"}


BAD_LATER = bad(tariff(price("0.5"), effective_from=MID_APRIL))


def test_a_bad_version_of_a_tariff_blocks_the_periods_that_end_after_its_start_and_no_other_account() -> None:
    made = contracts(*WHOLE, tariff(id="other"), account("beta", device("van-2"), tariff="other"), BAD_LATER)
    assert faults_of(made, "acme", MARCH) == faults_of(made, "beta", APRIL) == []
    (fault,) = faults_of(made, "acme", APRIL)
    assert "tariff 'standard' from 2026-04-10T00:00:00Z (topic 3:5:-1, publication" in str(fault)
    assert "colour: Extra inputs are not permitted; publish it again, corrected" in str(fault)


@pytest.mark.parametrize(
    "wrong",
    [
        BAD_LATER,
        tariff(effective_from="soon"),
        tariff(effective_from="2026-03-10T00:00:00"),
        tariff(effective_from="2026-03-10T00:07:00Z"),
        tariff(effective_from="0001-01-01T00:00:00Z"),
        tariff(effective_from=None),
        {"id": "standard", "prices": []},
    ],
)
def test_a_later_good_publication_unblocks_also_where_the_moment_of_the_bad_one_cannot_be_read(
    wrong: dict[str, Any],
) -> None:
    assert faults_of(contracts(*WHOLE, wrong), period=APRIL)
    corrected = tariff(price("0.5"), effective_from=MID_APRIL)
    made = contracts(*WHOLE, wrong, corrected)
    assert faults_of(made, period=APRIL) == []
    assert made.refused == ()
    amounts = [span.tariff.prices[0].unit_amount for span in made.contract_of("acme", APRIL).accounts[0].spans]
    assert amounts == [Decimal("0.45"), Decimal("0.5")]


def test_a_parent_that_is_not_there_is_named_and_blocks_no_other_tree() -> None:
    made = contracts(*WHOLE, account("a", parent="nobody"), account("b", parent="a"))
    assert faults_of(made) == []
    (fault, child) = made.without_payer(MARCH.start)
    assert "account 'b' has the parent 'a', which has the parent 'nobody'" in str(child)
    assert "account 'a' has the parent 'nobody', which is not in force" in str(fault)
    assert [one.missing for one in faults_of(made, "a")] == [("account", "nobody")]
    assert [str(one) for one in faults_of(made, "b")] == [str(child)]


def test_a_child_of_a_child_blocks_the_payer_and_is_named() -> None:
    made = contracts(*WHOLE, account("a", parent="acme"), account("b", parent="a"))
    (fault,) = faults_of(made)
    assert str(fault) == "account 'b' has the parent 'a', which has the parent 'acme'; a parent must pay itself"
    assert [str(one) for one in made.without_payer(MARCH.start)] == [str(fault)]
    assert [str(one) for one in faults_of(made, "b")] == [str(fault)]


def test_a_tariff_in_another_currency_needs_the_rate_at_the_end_of_the_period() -> None:
    dollars = (legal_entity(), tariff(currency="USD"), account("acme", device()))
    (fault,) = faults_of(contracts(*dollars))
    assert "account 'acme' has prices in USD, is billed in EUR, and no exchange rate 'usd-eur' is in force" in str(
        fault
    )
    late = exchange_rate("0.8", effective_from="2026-03-31T21:45:00Z")
    later = exchange_rate("0.7", effective_from="2026-03-31T22:00:00Z")
    made = contracts(*dollars, exchange_rate("0.9"), late, later)
    assert [*made.contract_of("acme", MARCH).rates.values()] == [Decimal("0.8")]
    assert [*made.contract_of("acme", APRIL).rates.values()] == [Decimal("0.7")]


@pytest.mark.parametrize("payer_id", ["nobody", "child", "../../evil"])
def test_who_is_no_payer_is_blocked_with_a_reason(payer_id: str) -> None:
    made = contracts(*WHOLE, account("child", parent="acme"))
    assert [type(one) for one in faults_of(made, payer_id)] == [UnknownPayer]
    with pytest.raises(UnknownPayer):
        made.period_of(payer_id, date(2026, 3, 1), date(2026, 3, 31))


MOMENTS = st.integers(0, 12).map(lambda week: datetime(2026, 2, 1 + week, tzinfo=UTC).isoformat())
DEVICES = st.builds(
    lambda name, begin, end: device(name, min(begin, end), max(begin, end) if begin != end else None),
    st.sampled_from(["v1", "v2", "v3"]),
    MOMENTS,
    MOMENTS,
)
ACCOUNTS = st.builds(
    lambda name, devices, since, is_bad: (
        account(name, *devices, effective_from=since) | ({"colour": 1} if is_bad else {})
    ),
    st.sampled_from("abcd"),
    st.lists(DEVICES, max_size=2, unique_by=lambda one: one["device"]),
    MOMENTS,
    st.booleans(),
)
FEBRUARY = BillingPeriod.parse("2026-02", BERLIN)


@given(st.lists(ACCOUNTS, max_size=8), st.randoms(use_true_random=False))
def test_no_device_is_ever_billed_to_two_accounts_and_only_these_are_blocked(
    bodies: list[dict[str, Any]], dice: random.Random
) -> None:
    mixed = rows(legal_entity(), tariff(), *bodies)
    dice.shuffle(mixed)
    made = Contracts(mixed)
    billed: list[Assigned] = []
    blocked: dict[str, list[ContractFault]] = {}
    for payer_id in made.payers(FEBRUARY.start, FEBRUARY.end):
        reasons = faults_of(made, payer_id, FEBRUARY)
        blocked[payer_id] = [one for one in reasons if "end one of the two assignments" in str(one)]
        assert all("publish it again, corrected" in str(one) for one in reasons if one not in blocked[payer_id])
        if not reasons:
            billed += made.contract_of(payer_id, FEBRUARY).assigned
    for one in billed:
        for other in billed:
            if one is not other and one.of_device == other.of_device:
                assert one.end_us <= other.begin_us or other.end_us <= one.begin_us
    for payer_id, faults in blocked.items():
        for fault in faults:
            assert ("account", payer_id) in fault.about
            ((_, partner),) = {*fault.about} - {("account", payer_id)}
            # whoever is named is blocked too
            assert partner in blocked
            assert faults_of(made, partner, FEBRUARY)


MID_MARCH_OF_ACCOUNT_ENDS = "2026-03-20T00:00:00Z"
SOLD = (legal_entity(), tariff())


def test_an_account_that_ended_is_in_the_period_of_its_end_and_in_no_later_one() -> None:
    made = contracts(
        *SOLD, account("acme", device(), effective_until=MID_MARCH_OF_ACCOUNT_ENDS), account("beta", device("van-2"))
    )
    contract = made.contract_of("acme", MARCH)
    assert [(one.begin_us, one.end_us) for one in contract.assigned] == [(START, MID)]
    assert contract.accounts[0].times == ((START, MID),)
    assert made.payers(MARCH.start, MARCH.end) == ["acme", "beta"]
    assert made.payers(APRIL.start, APRIL.end) == ["beta"]
    (fault,) = faults_of(made, period=APRIL)
    assert "is not in force in the period" in str(fault)


def test_a_parent_that_ends_before_its_child_is_missing_from_then_on() -> None:
    made = contracts(*SOLD, account(effective_until=MID_MARCH_OF_ACCOUNT_ENDS), account("child", parent="acme"))
    (fault,) = faults_of(made)
    assert MID_MARCH_OF_ACCOUNT_ENDS in str(fault)
    assert made.without_payer(MARCH.start) == []
    assert [one.missing for one in made.without_payer(APRIL.start)] == [("account", "acme")]
    both = account("child", parent="acme", effective_until=MID_MARCH_OF_ACCOUNT_ENDS)
    assert faults_of(contracts(*SOLD, account(effective_until=MID_MARCH_OF_ACCOUNT_ENDS), both)) == []


OFFSETS = st.integers(-14 * 4, 14 * 4).map(lambda quarters: timezone(quarters * timedelta(minutes=15)))
MOMENTS_OF_BEGINNING = st.one_of(
    st.datetimes(timezones=st.none() | OFFSETS).map(datetime.isoformat),
    st.integers(0, 10**6).map(lambda n: f"{(datetime(1960, 1, 1) + n * timedelta(hours=11.25)).isoformat()}+05:45"),
    st.text(max_size=12),
)


@given(MOMENTS_OF_BEGINNING)
@example("1971-01-01T00:00:00+14:00")
@example("2999-12-31T23:45:00-14:00")
@example("0001-01-01T00:00:00+14:00")
def test_a_version_has_a_known_beginning_just_where_its_model_takes_the_moment(text: str) -> None:
    body = tariff(effective_from=text)
    try:
        made = Tariff.model_validate(body)
    except ValidationError:
        assert beginning("tariff", json.dumps(body)) in {UNKNOWN_BEGINNING, ""}
    else:
        assert datetime.fromisoformat(beginning("tariff", json.dumps(body))) == made.effective_from


ENDLESS = ["[]", "not json", "[" * 100_000, "{}", '{"effective_until": 5}', '{"effective_until": "2026-03-01T00:00"}']


@pytest.mark.parametrize("body", ENDLESS, ids=lambda body: body[:12])
def test_a_body_that_states_no_instant_states_no_end(body: str) -> None:
    assert ending("account", body) is None


@pytest.mark.parametrize("since", ["2026-03-31T22:00:00Z", MID_APRIL, "2026-04-01T07:00:00Z"])
def test_a_payer_keeps_its_time_zone_and_a_version_with_another_one_blocks_what_it_is_of(since: str) -> None:
    """Else hours would be in two periods, or in none: wherever the version begins."""
    later = account("acme", device(), effective_from=since, payer=payer(time_zone="America/Los_Angeles"))
    made = contracts(*WHOLE, later, account("beta"))
    assert faults_of(made, period=MARCH) == []
    assert made.period_of("acme", APRIL.first_day, APRIL.last_day) == APRIL
    (fault,) = faults_of(made, period=APRIL)
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
        assert "the legal entities 'waybill-eu' and 'waybill-us' have one number_prefix, 'WB-EU-'" in str(fault)
    assert faults_of(made, "kaze") == []
