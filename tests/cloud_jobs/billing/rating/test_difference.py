"""What a note posts: the rest to the sum of everything that is owed."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_jobs.billing.contracts import VatCategory
from cloud_jobs.billing.meters import Meter, round_ratio
from cloud_jobs.billing.rating import Charge, ChargeKey, ChargeKind, Posted, RatedAccount, TaxGroup, difference
from tests.cloud_jobs.billing.rating.worlds import Row, World, rated, usage_rows, worlds
from tests.examples import examples

few = settings(max_examples=examples(60), deadline=None)
keys = st.builds(
    ChargeKey,
    account=st.sampled_from(["acme", "west"]),
    device=st.sampled_from(["", "van"]),
    kind=st.sampled_from(list(ChargeKind)),
    meter=st.sampled_from([None, Meter.DISTANCE, Meter.ENTRY]),
    zone=st.sampled_from(["", "a"]),
)


@st.composite
def owed(draw: st.DrawFn) -> RatedAccount:
    """Any charges, and the tax on them at one of two rates."""
    found = draw(st.dictionaries(keys, st.tuples(st.integers(0, 99), st.integers(0, 9), st.integers(-500, 500))))
    charges = tuple(
        Charge(key=key, quantity=quantity, free=min(free, quantity), amount_minor=amount, metered=None)
        for key, (quantity, free, amount) in sorted(found.items(), key=lambda item: item[0].order)
    )
    net, rate = sum(charge.amount_minor for charge in charges), draw(st.sampled_from([19, 20]))
    tax = TaxGroup(
        category=VatCategory.STANDARD,
        rate=Decimal(rate),
        exemption_reason=None,
        taxable_minor=net,
        tax_minor=round_ratio(net * rate, 100),
    )
    return RatedAccount(payer="acme", currency="EUR", charges=charges, taxes=(tax,))


@few
@given(st.lists(owed(), min_size=1, max_size=5))
def test_whatever_was_posted_before_invoice_and_notes_together_are_what_is_owed_now(
    versions: list[RatedAccount],
) -> None:
    documents: list[RatedAccount] = []
    for now in versions:
        note = difference(Posted.of(documents), now)
        documents.append(note)
        assert Posted.of(documents) == Posted.of([now])
        assert sum(one.net_minor for one in documents) == now.net_minor
        assert sum(one.tax_minor for one in documents) == now.tax_minor
        assert sum(one.gross_minor for one in documents) == now.gross_minor
        assert Posted.of(documents[::-1]) == Posted.of(documents)


@few
@given(st.lists(owed(), max_size=3), owed())
def test_a_second_note_of_the_same_is_empty(before: list[RatedAccount], now: RatedAccount) -> None:
    documents = [*before, difference(Posted.of(before), now)]
    again = difference(Posted.of(documents), now)
    assert (again.charges, again.taxes) == ((), ())


@few
@given(st.lists(owed(), max_size=3))
def test_a_note_to_nothing_takes_everything_back(documents: list[RatedAccount]) -> None:
    nothing = RatedAccount(payer="acme", currency="EUR", charges=(), taxes=())
    documents = [*documents, difference(Posted.of(documents), nothing)]
    assert Posted.of(documents) == Posted({}, {})


@few
@given(worlds(), st.data())
def test_any_number_of_late_arrivals_ends_at_the_right_sum(world: World, data: st.DataObject) -> None:
    rows: list[Row] = data.draw(usage_rows(world.days, max_size=9))
    documents: list[RatedAccount] = []
    for count in range(0, len(rows) + 1, 3):
        documents.append(difference(Posted.of(documents), rated(world, rows[:count])))
    documents.append(difference(Posted.of(documents), rated(world, rows)))
    assert Posted.of(documents) == Posted.of([rated(world, rows)])
    assert sum(one.gross_minor for one in documents) == rated(world, rows).gross_minor


def test_two_late_arrivals_cost_what_they_cost_together() -> None:
    """Nothing remembered what was posted: 4.50 and then 9.00 were charged where 9.00 was due."""

    def at(amount: int) -> RatedAccount:
        key = ChargeKey(account="acme", kind=ChargeKind.USAGE, meter=Meter.DISTANCE)
        charge = Charge(key=key, quantity=amount, free=0, amount_minor=amount, metered=None)
        return RatedAccount(payer="acme", currency="EUR", charges=(charge,), taxes=())

    invoice = at(0)
    april = difference(Posted.of([invoice]), at(450))
    may = difference(Posted.of([invoice, april]), at(900))
    assert [note.net_minor for note in (april, may)] == [450, 450]


def test_another_rate_of_tax_takes_the_old_tax_back() -> None:
    key = ChargeKey(account="acme", kind=ChargeKind.USAGE, meter=Meter.DISTANCE)
    charge = Charge(key=key, quantity=1, free=0, amount_minor=1000, metered=None)
    tax = TaxGroup(
        category=VatCategory.STANDARD, rate=Decimal(19), exemption_reason=None, taxable_minor=1000, tax_minor=190
    )
    before = RatedAccount(payer="acme", currency="EUR", charges=(charge,), taxes=(tax,))
    now = replace(before, taxes=(replace(tax, rate=Decimal(20), tax_minor=200),))
    note = difference(Posted.of([before]), now)
    assert note.charges == ()
    assert [(int(group.rate), group.taxable_minor, group.tax_minor) for group in note.taxes] == [
        (19, -1000, -190),
        (20, 1000, 200),
    ]
