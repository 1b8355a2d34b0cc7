"""A hop is red when its newest due probe did not come whole, once, in time and right; what is not known is unknown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.canary.hops import PARENT, Hop
from deploy.canary.ledger import CanaryLedger, HopColour

LIMITS_S = dict.fromkeys(Hop, 10.0)
ITEMS = dict.fromkeys(Hop, ("a", "b"))


def ledger() -> CanaryLedger:
    return CanaryLedger(LIMITS_S, lost_after_s=100.0)


def colours(of: CanaryLedger, now_s: float) -> dict[Hop, HopColour]:
    return {state.hop: state.colour for state in of.states(now_s)}


def test_without_a_probe_nothing_is_known() -> None:
    assert set(colours(ledger(), 0.0).values()) == {HopColour.UNKNOWN}


def test_a_probe_that_is_not_due_yet_says_nothing() -> None:
    one = ledger()
    one.send(1, ITEMS, 0.0)
    assert set(colours(one, 9.0).values()) == {HopColour.UNKNOWN}


@pytest.mark.parametrize("broken", list(Hop))
def test_only_the_first_hop_that_it_does_not_reach_is_red(broken: Hop) -> None:
    one = ledger()
    one.send(1, ITEMS, 0.0)
    for hop in Hop:
        line = [hop]
        while (parent := PARENT[line[-1]]) is not None:
            line.append(parent)
        if broken not in line:
            one.see(1, hop, ITEMS[hop], 1.0)
    found = colours(one, 50.0)
    assert [hop for hop in Hop if found[hop] is HopColour.RED] == [broken]
    behind = [hop for hop in Hop if PARENT[hop] is broken]
    assert all(found[hop] is HopColour.UNKNOWN for hop in behind)


def test_a_hop_behind_one_that_is_red_does_not_stay_green() -> None:
    one = ledger()
    one.send(1, ITEMS, 0.0)
    for hop in Hop:
        one.see(1, hop, ITEMS[hop], 1.0)
    assert set(colours(one, 2.0).values()) == {HopColour.GREEN}
    one.send(2, ITEMS, 20.0)
    assert colours(one, 25.0)[Hop.RATED] is HopColour.GREEN
    assert colours(one, 31.0)[Hop.REGION] is HopColour.RED
    assert {colours(one, 31.0)[hop] for hop in Hop if PARENT[hop] is not None} == {HopColour.UNKNOWN}


def test_a_hop_is_green_again_when_the_next_probe_comes() -> None:
    one = ledger()
    one.send(1, ITEMS, 0.0)
    assert colours(one, 11.0)[Hop.REGION] is HopColour.RED
    one.send(2, ITEMS, 12.0)
    assert colours(one, 13.0)[Hop.REGION] is HopColour.RED
    one.see(2, Hop.REGION, "ab", 14.0)
    assert colours(one, 15.0)[Hop.REGION] is HopColour.GREEN


def test_what_comes_late_twice_or_wrong_is_red() -> None:
    one = ledger()
    one.send(1, ITEMS, 0.0)
    one.see(1, Hop.REGION, "ab", 11.0)
    assert one.states(12.0)[0].reason == "probe 1 came 1 s too late"
    one.send(2, ITEMS, 20.0)
    one.see(2, Hop.REGION, "aba", 21.0)
    assert one.states(22.0)[0].reason == "probe 2: 1 came twice"
    one.send(3, ITEMS, 30.0)
    one.see(3, Hop.REGION, "ab", 31.0)
    one.is_wrong(3, Hop.REGION, "0.20 EUR, not 0.10")
    assert one.states(32.0)[0].reason == "probe 3: 0.20 EUR, not 0.10"


def test_the_service_level_counts_what_is_delayed_and_lost() -> None:
    one = ledger()
    for number in range(4):
        one.send(number, ITEMS, float(number))
    one.see(0, Hop.REGION, "ab", 5.0)
    one.see(1, Hop.REGION, "ab", 50.0)
    one.see(2, Hop.REGION, "a", 5.0)
    counts = one.counts(Hop.REGION, 0.0, 3.0, 60.0)
    assert (counts.consumed, counts.delayed, counts.lost, counts.level) == (5, 2, 0, 3 / 5)
    assert one.counts(Hop.REGION, 0.0, 3.0, 200.0).level == 3 / 6
    assert one.counts(Hop.REGION, 0.0, 4.0, 200.0).level == 3 / 8
    assert one.counts(Hop.REGION, 10.0, 20.0, 200.0).level is None


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(list(Hop)), st.sampled_from("abx")), max_size=60))
def test_whatever_shows_in_which_order_counts_are_bounded_and_no_hop_is_green_without_a_whole_probe(
    shown: list[tuple[int, Hop, str]],
) -> None:
    one = ledger()
    for number in range(3):
        one.send(number, ITEMS, float(number))
    for at, (number, hop, item) in enumerate(shown):
        one.see(number, hop, item, float(at))
    for state in one.states(1000.0):
        counts = one.counts(state.hop, 0.0, 3.0, 1000.0)
        assert counts.consumed + counts.lost == 6
        assert 0.0 <= (counts.level or 0.0) <= 1.0
        if state.colour is HopColour.GREEN:
            assert counts.consumed >= 2


def test_only_the_newest_probes_are_kept() -> None:
    one = CanaryLedger(LIMITS_S, lost_after_s=100.0, most=2)
    for number in range(5):
        one.send(number, ITEMS, 0.0)
    one.see(0, Hop.REGION, "a", 1.0)
    assert len(one) == 2
    assert one.waiting(Hop.REGION) == [3, 4]
