"""What holds of everything that is rated."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_jobs.billing.rating import Cell, cells_of_usage, rate
from simulator.truth import quarters_of
from tests.cloud_jobs.billing.rating.worlds import (
    QUANTITIES,
    Row,
    World,
    rated,
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
    [{"pool": "account", "per": "period", "amount": "40"}],
    [{"pool": "device", "per": "period", "amount": "9"}],
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
        payer="other",
        accounts=tuple(
            replace(terms, devices=tuple(device.model_copy(update={"tenant": "rival"}) for device in terms.devices))
            for terms in other[0].contract.accounts
        ),
    )
    rows = one[1] + [row | {"tenant": "rival"} for row in other[1]]
    together = cells_of_usage([first, second], table(rows))
    apart = [*cells_of_usage([first], table(rows)), *cells_of_usage([second], table(rows))]
    assert [sorted(map(_order, found.cells)) for found in together] == [
        sorted(map(_order, found.cells)) for found in apart
    ]
    assert [found.metered for found in together] == [found.metered for found in apart]


@few
@given(used, used)
def test_what_was_inferred_changes_no_bill_by_tariffs_without_a_price_for_it(
    drawn: tuple[World, list[Row]], other: tuple[World, list[Row]]
) -> None:
    """Nor from which rows it comes, whoever is rated beside it: else a group of payers would decide on a digest."""
    world, rows = drawn
    tariffs = tuple(
        {**one, "prices": [price for price in one["prices"] if price["meter"] != "inferred entry"]}
        for one in world.tariffs
    )
    contract = replace(world, tariffs=tariffs).contract
    known = [{**row, "inferred_entries": [0, 0, 0, 0]} for row in rows]
    (without,) = cells_of_usage([contract], table(known))
    strangers = [
        replace(terms, devices=tuple(one.model_copy(update={"tenant": "rival"}) for one in terms.devices))
        for terms in other[0].contract.accounts
    ]
    beside = replace(other[0].contract, payer="other", accounts=tuple(strangers))
    both, _ = cells_of_usage([contract, beside], table(rows + [row | {"tenant": "rival"} for row in other[1]]))
    for found in (both, *cells_of_usage([contract], table(rows).drop_columns(["inferred_entries"]))):
        assert rate(contract, *found) == rate(contract, *without)


def _order(cell: Cell) -> tuple[str, ...]:
    return tuple(map(str, cell))
