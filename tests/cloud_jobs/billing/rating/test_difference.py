"""What a note posts: the rest to the sum of everything that is owed."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_jobs.billing.contracts import VatCategory
from cloud_jobs.billing.rating import (
    Charge,
    ChargeKey,
    ChargeKind,
    RatedAccount,
    TaxGroup,
    difference,
    taken_back,
)
from cloud_jobs.billing.units import Meter, round_ratio
from tests.cloud_jobs.billing.rating.worlds import Row, World, rated, usage_rows, worlds
from tests.examples import examples


def together(documents: Iterable[RatedAccount]) -> RatedAccount:
    """What documents post in all, with the charges and taxes that are left."""
    made = RatedAccount(payer="acme", currency="EUR", charges=(), taxes=())
    for one in documents:
        made = difference(taken_back(one), made)
    return made


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
        note = difference(together(documents), now)
        documents.append(note)
        assert together(documents) == together([now])
        assert sum(one.net_minor for one in documents) == now.net_minor
        assert sum(one.tax_minor for one in documents) == now.tax_minor
        assert sum(one.gross_minor for one in documents) == now.gross_minor
        assert together(documents[::-1]) == together(documents)


@few
@given(st.lists(owed(), max_size=3))
def test_a_note_to_nothing_takes_everything_back(documents: list[RatedAccount]) -> None:
    nothing = RatedAccount(payer="acme", currency="EUR", charges=(), taxes=())
    documents = [*documents, difference(together(documents), nothing)]
    assert (together(documents).charges, together(documents).taxes) == ((), ())


@few
@given(worlds(), st.data())
def test_any_number_of_late_arrivals_ends_at_the_right_sum(world: World, data: st.DataObject) -> None:
    rows: list[Row] = data.draw(usage_rows(world.days, max_size=9))
    documents: list[RatedAccount] = []
    for count in range(0, len(rows) + 1, 3):
        documents.append(difference(together(documents), rated(world, rows[:count])))
    documents.append(difference(together(documents), rated(world, rows)))
    assert together(documents) == together([rated(world, rows)])
    assert sum(one.gross_minor for one in documents) == rated(world, rows).gross_minor
