"""One rule says which publications are in force: the latest of each version that can be used."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.reference.files import usable
from cloud_jobs.reference.tables import in_force
from geo.reference.in_force import InForce
from tests.cloud_jobs.billing.contracts.makers import account
from tests.cloud_jobs.publications import row_of

TARIFF = {"id": "t", "currency": "EUR", "effective_from": "2026-01-01T00:00:00Z", "prices": []}
ACCOUNT = account("t")


def tariff(price: str, **more: Any) -> dict[str, Any]:
    return TARIFF | {"prices": [{"meter": "distance", "unit": "km", "unit_amount": price}]} | more


def found(*bodies: Any, kind: Any = "tariff", id_: str = "t") -> InForce[Any]:
    return in_force([row_of(kind, id_, body, number) for number, body in enumerate(bodies)], usable)


def prices(of: InForce[Any]) -> list[str]:
    return [str(held.made.prices[0].unit_amount) for held in of.held]


@given(st.lists(st.sampled_from(["0.45", "4.50", "7.00"]), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_the_latest_publication_holds_in_whatever_order_rows_are_read(said: list[str], dice: random.Random) -> None:
    rows = [row_of("tariff", "t", tariff(price), number) for number, price in enumerate(said)]
    dice.shuffle(rows)
    assert prices(in_force(rows, usable)) == [said[-1]]


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("tariff", tariff("1"), TARIFF | {"currency": "EURO"}),
        ("tariff", tariff("1"), "[]"),
        ("account", ACCOUNT, ACCOUNT | {"colour": "red"}),
        ("account", ACCOUNT, "[" * 100_000),
    ],
)
def test_what_cannot_be_used_is_not_in_force_and_is_named_until_it_is_corrected(kind: Any, good: Any, bad: Any) -> None:
    before, wrong, corrected = (found(*bodies, kind=kind) for bodies in ((good,), (good, bad), (good, bad, good)))
    assert before.refused == corrected.refused == ()
    (refused,) = wrong.refused
    assert (refused.kind, refused.id, refused.place) == (kind, "t", "topic 3:1:-1")
    assert refused.publication_id in str(refused)
    assert refused.reason
    assert [held.made for held in wrong.held] == [held.made for held in before.held]


def test_what_cannot_be_used_hides_no_other_version_and_no_other_thing() -> None:
    rows = [
        row_of("tariff", "t", tariff("1"), 0),
        row_of("tariff", "t", tariff("x", effective_from="2026-02-01T00:00:00Z"), 1),
        row_of("tariff", "u", tariff("2", id="u"), 2),
        row_of("account", "a", "{}", 3),
        row_of("fence", "f", "{}", 4),
    ]
    made = in_force(rows, usable)
    assert prices(made) == ["1", "2"]
    assert [(refused.kind, refused.id) for refused in made.refused] == [
        ("account", "a"),
        ("fence", "f"),
        ("tariff", "t"),
    ]
