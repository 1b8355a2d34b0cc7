"""What is dated ahead puts its own device in doubt, or its tenant where there is too much of it, and no other."""

from __future__ import annotations

import pytest

from waybill.identity import registry_topic as ahead_entries
from waybill.identity.registry import Precedence
from waybill.identity.registry_topic import AheadEntries

DUE_MS = 10_000.0


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead_entries, "MAX_OF_TENANT", 10)
    monkeypatch.setattr(ahead_entries, "MAX_REMEMBERED", 25)
    monkeypatch.setattr(ahead_entries, "MAX_WHOLE", 3)


LOW, HIGH = Precedence(False, 1, 0, "a"), Precedence(False, 2, 0, "b")


def noted(*tenants: str, each: int = 1) -> AheadEntries:
    made = AheadEntries(lambda: 0.0)
    for tenant in tenants:
        for n in range(each):
            made.note(f"{tenant}/bus-{n}", HIGH, DUE_MS, DUE_MS)
    return made


def test_more_entries_of_one_tenant_than_are_remembered_put_that_tenant_in_doubt_alone() -> None:
    made = noted("evil", each=11)
    assert made.outranks("evil/any", LOW)
    assert not made.outranks("zeta/bus-1", LOW)
    assert len(made) == 0, "no name of it is kept"
    made.note("zeta/bus-1", HIGH, DUE_MS, DUE_MS)
    assert made.outranks("zeta/bus-1", LOW)
    assert not made.outranks("zeta/bus-1", HIGH)
    assert not made.outranks("zeta/bus-2", LOW)
    assert "tenant evil that all of them count" in made.problem


def test_where_all_tenants_have_too_many_the_one_with_most_is_in_doubt_as_a_whole() -> None:
    made = noted("a", "b", each=10)
    for n in range(6):
        made.note(f"c/bus-{n}", HIGH, DUE_MS, DUE_MS)
    assert made.outranks("a/other", LOW)
    assert not made.outranks("b/other", LOW)
    assert not made.outranks("c/other", LOW)
    assert made.outranks("c/bus-5", LOW)
    assert len(made) == 16


def test_a_tenant_in_doubt_is_read_again_when_the_earliest_is_due_and_in_doubt_no_more() -> None:
    made = noted("evil", each=11)
    made.note("evil/bus-1", HIGH, 5000, 5000)
    assert not made.take_due(4999)
    assert made.take_due(5000)
    assert not made.outranks("evil/bus-1", LOW)
    assert made.problem == ""
    made.note("evil/bus-1", HIGH, DUE_MS, DUE_MS)
    assert made.outranks("evil/bus-1", LOW)


def test_more_tenants_in_doubt_than_are_remembered_are_all() -> None:
    made = noted("a", "b", "c", "d", each=11)
    assert made.outranks("zeta/bus-1", LOW)
    assert made.take_due(DUE_MS)
    assert not made.outranks("zeta/bus-1", LOW)


def test_what_is_settled_makes_room() -> None:
    made = noted("a", each=10)
    made.settle("a/bus-0", HIGH)
    made.note("a/bus-10", HIGH, DUE_MS, DUE_MS)
    assert not made.outranks("a/bus-0", LOW)
    assert len(made) == 10
