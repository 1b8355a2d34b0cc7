"""What holds of everything that is rated."""

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from cloud_jobs.billing.contracts import Contracts, PayerContract, Tariff
from cloud_jobs.billing.errors import BillingError
from cloud_jobs.billing.rating import (
    Cell,
    Charge,
    ChargeKey,
    ChargeKind,
    PriceBooks,
    RatedAccount,
    cell_columns,
    cells_of_usage,
    charges_in_columns,
    difference,
    rate,
    taken_back,
    tax_group,
)
from cloud_jobs.billing.rating.charges import MOST_MINOR
from cloud_jobs.billing.rating.pools import Exact, split
from cloud_jobs.billing.rating.rate_columns import split_columns
from cloud_jobs.billing.register.closing import PeriodKey
from cloud_jobs.billing.register.control_totals import assigned_usage
from cloud_jobs.billing.register.tables import charge_columns, charge_rows, charges_from
from cloud_jobs.billing.units import Meter, round_ratio
from simulator.truth import quarters_of
from tests.cloud_jobs.billing.contracts.makers import (
    MARCH,
    account,
    contracts,
    device,
    exchange_rate,
    legal_entity,
    price,
    tariff,
)
from tests.cloud_jobs.billing.rating.worlds import (
    QUANTITIES,
    UNITS,
    Row,
    World,
    rated,
    row,
    table,
    true_quarters,
    used_worlds,
)
from tests.examples import examples

few = settings(max_examples=examples(30), deadline=None)
used = used_worlds()


@few
@given(used, st.randoms(use_true_random=False), st.integers(1, 4))
def test_order_duplicates_and_files_of_the_rows_change_nothing(
    drawn: tuple[World, list[Row]], shuffled: random.Random, files: int
) -> None:
    world, rows = drawn
    before = rated(world, rows)
    rows = rows + rows[::2]
    shuffled.shuffle(rows)
    pieces = pa.concat_tables([table(rows[number::files]) for number in range(files)])
    contract = replace(world.contract, accounts=world.contract.accounts[::-1])
    (found,) = cells_of_usage([contract], pieces)
    assert rate(contract, *found) == before


def _assigned(world: World, tenant: str, device: str, moment: datetime) -> bool:
    listed = [*world.devices, *world.child_devices]
    return any(
        (one["tenant"], one["device"]) == (tenant, device)
        and one["begin"] <= moment
        and ("end" not in one or moment < one["end"])
        for one in listed
    )


@few
@given(used)
def test_what_was_used_in_the_period_by_devices_of_the_account_is_in_the_cells_and_in_the_charges(
    drawn: tuple[World, list[Row]],
) -> None:
    world, rows = drawn
    moments = {moment for moment, _ in quarters_of(world.days)}
    expected: Counter[str] = Counter()
    for one in true_quarters(rows):
        if one.begin in moments and _assigned(world, one.tenant, one.device, one.begin):
            expected.update({name: getattr(one, name) for name in QUANTITIES})
            # rows of the whole device say them once more
            expected["inferred_entries"] -= one.inferred_entries if one.zone == "*" else 0
    contract = world.contract
    (found,) = cells_of_usage([contract], table(rows))
    meters = "distance", "duration", "entry", "crossing", "event", "transmitted", "inferred entry"
    names = dict(zip(meters, QUANTITIES, strict=True))
    counted: Counter[str] = Counter()
    for cell in found.cells:
        assert cell.quantity > 0
        if cell.meter in names:
            counted[names[cell.meter]] += cell.quantity
    sold = [{price["meter"] for price in one["prices"]} for one in world.tariffs]
    sold_by_all = [meter for meter in names if all(meter in meters for meters in sold)]
    if "inferred entry" not in sold_by_all:
        # accounts that do not sell them have none
        assert counted.pop("inferred_entries", 0) <= expected.pop("inferred_entries", 0)
    assert counted == +expected
    charged: Counter[str] = Counter()
    for charge in rate(contract, *found).charges:
        if charge.key.meter is not None:
            charged[charge.key.meter] += charge.quantity
    for meter in sold_by_all:
        assert charged[meter] == expected[names[meter]]


@few
@given(used)
def test_the_sums_are_those_of_the_charges_and_no_part_is_negative(drawn: tuple[World, list[Row]]) -> None:
    found = rated(*drawn)
    keys = [charge.key for charge in found.charges]
    assert keys == sorted(keys, key=lambda key: key.order)
    assert len(set(keys)) == len(keys)
    assert found.gross_minor == found.net_minor + found.tax_minor
    for charge in found.charges:
        assert 0 <= charge.free <= charge.quantity
        assert charge.amount_minor >= 0
        assert charge.metered is not None or charge.key.kind != "usage"


@few
@given(used, st.data())
def test_the_same_price_from_an_earlier_date_changes_no_charge(
    drawn: tuple[World, list[Row]], data: st.DataObject
) -> None:
    """It credited and debited every line once. A version that repeats another is none; nor is it when it began."""
    world, rows = drawn
    one = world.tariffs[0]
    moments = [moment for moment, _ in quarters_of(world.days)]
    again = data.draw(st.sets(st.sampled_from(moments), max_size=3))
    repeated = tuple({**one, "effective_from": begin} for begin in again)
    written = [
        {**price, "unit_amount": price["unit_amount"] + "0"} for price in one["prices"] if "unit_amount" in price
    ]
    others = [price for price in one["prices"] if "unit_amount" not in price]
    rewritten = ({**one, "effective_from": min(moments), "prices": written + others},)
    assert rated(replace(world, tariffs=(one, *repeated)), rows) == rated(replace(world, tariffs=(one,)), rows)
    assert rated(replace(world, tariffs=(one, *rewritten)), rows) == rated(replace(world, tariffs=(one,)), rows)


def dearer(one: dict[str, Any], by: Decimal, which: int = -1) -> dict[str, Any]:
    """A price with one of its tiers (-1: each) at another amount."""
    if "unit_amount" in one:
        return {**one, "unit_amount": str(Decimal(one["unit_amount"]) + by)}
    tiers = [
        {**tier, "unit_amount": str(Decimal(tier["unit_amount"]) + by)} if which in {-1, number} else tier
        for number, tier in enumerate(one["tiers"])
    ]
    return {**one, "tiers": tiers}


CAPS: tuple[list[dict[str, Any]], ...] = (
    [],
    [{"scope": "account", "span": "cycle", "amount": "40"}],
    [{"scope": "device", "span": "cycle", "amount": "9"}],
)


@few
@given(used, st.sampled_from(CAPS), st.decimals("0.0001", 2, places=4), st.data())
def test_a_price_that_rises_never_lowers_a_bill(
    drawn: tuple[World, list[Row]], caps: list[dict[str, Any]], by: Decimal, data: st.DataObject
) -> None:
    """Of any version, in any tier, from its beginning or from a moment on."""
    world, rows = drawn
    tariffs = tuple({**one, "caps": caps} for one in world.tariffs)
    changed = data.draw(st.integers(0, len(tariffs) - 1))
    number = data.draw(st.integers(0, len(tariffs[changed]["prices"]) - 1))
    which = data.draw(st.integers(-1, 3))
    prices = list(tariffs[changed]["prices"])
    prices[number] = dearer(prices[number], by, which)
    raised = (*tariffs[:changed], {**tariffs[changed], "prices": prices}, *tariffs[changed + 1 :])
    assert (
        rated(replace(world, tariffs=raised), rows).net_minor >= rated(replace(world, tariffs=tariffs), rows).net_minor
    )


@few
@given(used, used)
def test_payers_that_are_rated_together_are_rated_as_each_by_itself(
    one: tuple[World, list[Row]], other: tuple[World, list[Row]]
) -> None:
    first = one[0].contract
    second = replace(
        other[0].contract,
        account=other[0].contract.account.model_copy(update={"id": "other"}),
        accounts=tuple(
            replace(account, assigned=tuple(one._replace(tenant="rival") for one in account.assigned))
            for account in other[0].contract.accounts
        ),
    )
    rows = one[1] + [row | {"tenant": "rival"} for row in other[1]]
    columns = cell_columns([first, second], table(rows))
    together = columns.of_payers(np.ones(2, np.bool_))
    apart = [*cells_of_usage([first], table(rows)), *cells_of_usage([second], table(rows))]
    assert [sorted(map(_order, found.cells)) for found in together] == [
        sorted(map(_order, found.cells)) for found in apart
    ]
    assert [found.metered for found in together] == [found.metered for found in apart]
    # in columns, or else cell by cell
    for number, charges in charges_in_columns([first, second], columns, PriceBooks()).items():
        contract = (first, second)[number]
        assert _outcome(contract, (), {}, usage_charges=charges) == _outcome(contract, *apart[number])


def _outcome(contract: PayerContract, *usage: Any, **charges: Any) -> RatedAccount | str:
    try:
        return rate(contract, *usage, **charges)
    except BillingError as fault:
        return str(fault)


@few
@given(st.lists(st.tuples(st.integers(0, 2**59), st.integers(1, 2**30), st.lists(st.integers(1, 2**28), min_size=1))))
def test_many_totals_are_split_as_each_by_itself(totals: list[tuple[int, int, list[int]]]) -> None:
    totals = [one for one in totals if one[0] < one[1] << 49 and one[1] * sum(one[2]) < 1 << 60]
    exact = [Exact(*one[:2]) for one in totals]
    whole, weights = [round_ratio(*one) for one in exact], [weight for one in totals for weight in one[2]]
    of = [at for at, one in enumerate(totals) for _ in one[2]]
    below = [one[1] * sum(one[2]) for one in totals]
    columns = (np.array(one, np.int64) for one in (whole, [one[0] for one in totals], below, weights, of))
    apart = [
        part for one, of_one, total in zip(whole, exact, totals, strict=True) for part in split(one, of_one, total[2])
    ]
    assert split_columns(*columns).tolist() == apart


@few
@given(used, used)
def test_what_was_inferred_changes_no_bill_by_tariffs_without_a_price_for_it(
    drawn: tuple[World, list[Row]], other: tuple[World, list[Row]]
) -> None:
    """Nor from which rows it comes, whoever is rated beside it: else a group of payers would decide on a digest."""
    world, rows = drawn
    tariffs = tuple(
        {**one, "prices": [price for price in one["prices"] if price["meter"] != "inferred entry"]}
        | {"pools": [pool for pool in one.get("pools", []) if pool["id"] != "inferred-entry"]}
        for one in world.tariffs
    )
    contract = replace(world, tariffs=tariffs).contract
    known = [{**row, "inferred_entries": [0, 0, 0, 0]} for row in rows]
    (without,) = cells_of_usage([contract], table(known))
    strangers = [
        replace(account, assigned=tuple(one._replace(tenant="rival") for one in account.assigned))
        for account in other[0].contract.accounts
    ]
    named = other[0].contract.account.model_copy(update={"id": "other"})
    beside = replace(other[0].contract, account=named, accounts=tuple(strangers))
    both, _ = cells_of_usage([contract, beside], table(rows + [row | {"tenant": "rival"} for row in other[1]]))
    for found in (both, *cells_of_usage([contract], table(rows).drop_columns(["inferred_entries"]))):
        assert rate(contract, *found) == rate(contract, *without)


def _order(cell: Cell) -> tuple[str, ...]:
    return tuple(map(str, cell))


HOUR = datetime(2026, 3, 10, 6, tzinfo=UTC)
KEY = PeriodKey("waybill-eu", "acme", date(2026, 3, 1), date(2026, 3, 31))
EXTREMES = st.sampled_from(["0", "-0", "0.000000000001", "0.45", "999999999", "1000000000", "999999999999"])
SMALLEST = UNITS | {"distance": "m", "duration": "min", "transmitted": "kB"}
MOST = st.sampled_from([7, 10**6, 10**9, 10**12, 10**15, 2**53 + 1, 2**57, 2**63 - 1])
"""Of a row's quantities the largest: with one that is beyond all bounds nothing else would be looked at."""


@st.composite
def prices(draw: st.DrawFn, meter: str) -> dict[str, Any]:
    zone = {"distance": "", "duration": ""}.get(meter, "*" if meter in {"entry", "crossing"} else "")
    made = price(draw(EXTREMES), meter=meter, unit=draw(st.sampled_from([UNITS, SMALLEST]))[meter], zone=zone)
    if draw(st.booleans()):
        made |= {"allowance": draw(EXTREMES), "pool": draw(st.sampled_from(["device", "account"]))}
    if draw(st.booleans()):
        del made["unit_amount"]
        tiers = [{"up_to": "1000", "unit_amount": draw(EXTREMES)}, {"unit_amount": draw(EXTREMES)}]
        made |= {"tiers": tiers, "tier_mode": draw(st.sampled_from(["graduated", "volume"]))}
    return made


@st.composite
def tariffs(draw: st.DrawFn) -> dict[str, Any]:
    meters = draw(st.sets(st.sampled_from(sorted(UNITS)), min_size=1, max_size=3))
    made = tariff(*(draw(prices(meter)) for meter in sorted(meters)), currency=draw(st.sampled_from(["EUR", "USD"])))
    whole = EXTREMES.filter(lambda text: "." not in text)
    if draw(st.booleans()):
        made["minimum_amount"] = draw(whole)
    if draw(st.booleans()):
        span, scope = draw(st.sampled_from(["day", "cycle"])), draw(st.sampled_from(["device", "account"]))
        made["caps"] = [{"scope": scope, "span": span, "amount": draw(whole)}]
    return made


@st.composite
def bounded_use(draw: st.DrawFn) -> list[Row]:
    zone = draw(st.sampled_from(["", "*", "port"]))
    hours = [HOUR.replace(hour=number) for number in range(draw(st.integers(1, 3)))]
    four = st.lists(st.sampled_from([0, 1, draw(MOST)]), min_size=4, max_size=4)
    return [row(hour, zone, "van-1", 1, **{name: draw(four) for name in QUANTITIES}) for hour in hours]


def agreed(*bodies: dict[str, Any]) -> Contracts:
    return contracts(legal_entity(), exchange_rate("999999999999"), account("acme", device()), *bodies)


def rated_in_bounds(made: Contracts, rows: list[Row]) -> RatedAccount:
    contract = made.contract_of("acme", MARCH)
    usage = table(rows)
    ((cells, metered),) = cells_of_usage([contract], usage)
    assigned_usage([contract], usage)
    return rate(contract, cells, metered)


@settings(max_examples=examples(400), deadline=None)
@given(tariffs(), bounded_use())
def test_any_price_and_any_usage_makes_charges_that_can_be_stored_or_a_reason(
    agreed_prices: dict[str, Any], rows: list[Row]
) -> None:
    try:
        Tariff.model_validate(agreed_prices)
    except ValidationError:
        return
    try:
        found = rated_in_bounds(agreed(agreed_prices), rows)
    except BillingError:
        return
    assert sum(abs(one.amount_minor) for one in found.charges) <= MOST_MINOR
    assert 0 <= found.net_minor <= found.gross_minor
    stored = charge_rows("run", [(KEY, charge_columns(found.charges))])
    assert charges_from([stored], [(KEY.payer, "run")]) == {(KEY.payer, "run"): found.charges}


def test_a_payer_that_owes_more_than_all_money_is_named_with_its_price() -> None:
    slip = tariff(price("1000000000", unit="m"))
    with pytest.raises(BillingError, match="a charge of account 'acme'"):
        rated_in_bounds(agreed(slip), [row(HOUR, "", "van-1", distance_mm=(2 * 10**7, 0, 0, 0))])


def together(documents: Iterable[RatedAccount]) -> RatedAccount:
    """What documents post in all, with the charges and taxes that are left."""
    made = RatedAccount(payer="acme", currency="EUR", charges=(), taxes=())
    for one in documents:
        made = difference(taken_back(one), made)
    return made


few_notes = settings(max_examples=examples(60), deadline=None)
keys = st.builds(
    ChargeKey,
    account=st.sampled_from(["acme", "west"]),
    device=st.sampled_from(["", "van"]),
    kind=st.sampled_from(list(ChargeKind)),
    meter=st.sampled_from([None, Meter.DISTANCE, Meter.ENTRY]),
    zone=st.sampled_from(["", "a"]),
    tax=st.sampled_from(["S 19", "S 7", "AE 0"]),
)


@st.composite
def owed(draw: st.DrawFn) -> RatedAccount:
    found = draw(st.dictionaries(keys, st.tuples(st.integers(0, 99), st.integers(0, 9), st.integers(-500, 500))))
    charges = tuple(
        Charge(key=key, quantity=quantity, free=min(free, quantity), amount_minor=amount, metered=None)
        for key, (quantity, free, amount) in sorted(found.items(), key=lambda item: item[0].order)
    )
    nets = Counter[str]()
    for one in charges:
        nets[one.key.tax] += one.amount_minor
    taxes = tuple(tax_group(tax, None, net) for tax, net in sorted(nets.items()))
    rounding = draw(st.integers(-2, 2))
    return RatedAccount(payer="acme", currency="EUR", charges=charges, taxes=taxes, rounding_minor=rounding)


@few_notes
@given(st.lists(owed(), min_size=1, max_size=5))
def test_whatever_was_posted_before_invoice_and_notes_together_are_what_is_owed_now(
    versions: list[RatedAccount],
) -> None:
    documents: list[RatedAccount] = []
    for now in versions:
        note = difference(together(documents), now)
        documents.append(note)
        assert together(documents) == together([now])
        assert sum(one.net_minor for one in documents) == now.net_minor
        assert sum(one.tax_minor for one in documents) == now.tax_minor
        assert sum(one.payable_minor for one in documents) == now.payable_minor
        assert together(documents[::-1]) == together(documents)


@few_notes
@given(st.lists(owed(), max_size=3))
def test_a_note_to_nothing_takes_everything_back(documents: list[RatedAccount]) -> None:
    nothing = RatedAccount(payer="acme", currency="EUR", charges=(), taxes=())
    documents = [*documents, difference(together(documents), nothing)]
    assert (together(documents).charges, together(documents).taxes) == ((), ())
