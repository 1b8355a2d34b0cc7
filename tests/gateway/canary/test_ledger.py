"""A hop is red when its newest due probes did not come whole, once, in time and right; what is not known is unknown."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.canary.config import PARENT, Hop, ProbeItem
from gateway.canary.ledger import RECENT, CanaryLedger, HopColour, HopCounts

LIMITS_S = dict.fromkeys(Hop, 10.0)
A, B, X = ProbeItem("a", 0), ProbeItem("b", 0), ProbeItem("x", 0)
ITEMS = dict.fromkeys(Hop, (A, B))


class Ledger(CanaryLedger):
    def __init__(self, hops: Iterable[Hop] = Hop, most: int = 100) -> None:
        super().__init__({hop: LIMITS_S[hop] for hop in hops}, lost_after_s=100.0, stale_after_s=500.0, most=most)

    def begin(self, number: int, at_s: float) -> None:
        self.send(number, ITEMS, at_s, at_s)


def colours(of: CanaryLedger, now_s: float) -> dict[Hop, HopColour]:
    return {state.hop: state.colour for state in of.states(now_s)}


def reason(of: CanaryLedger, hop: Hop, now_s: float) -> str:
    return next(state.reason for state in of.states(now_s) if state.hop is hop)


def test_without_a_probe_nothing_is_known() -> None:
    assert set(colours(Ledger(), 0.0).values()) == {HopColour.UNKNOWN}


def test_a_probe_that_is_not_due_yet_says_nothing() -> None:
    one = Ledger()
    one.begin(1, 0.0)
    assert set(colours(one, 9.0).values()) == {HopColour.UNKNOWN}


def test_a_hop_has_its_time_from_the_end_of_the_drive() -> None:
    one = Ledger()
    one.send(1, ITEMS, 0.0, 20.0)
    assert colours(one, 29.0)[Hop.REGION] is HopColour.UNKNOWN
    assert colours(one, 31.0)[Hop.REGION] is HopColour.RED


@pytest.mark.parametrize("broken", list(Hop))
def test_only_the_first_hop_that_it_does_not_reach_is_red(broken: Hop) -> None:
    one = Ledger()
    one.begin(1, 0.0)
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


def test_a_hop_is_green_again_when_what_was_missing_has_come() -> None:
    one = Ledger()
    one.begin(1, 0.0)
    assert colours(one, 11.0)[Hop.REGION] is HopColour.RED
    one.begin(2, 12.0)
    one.see(2, Hop.REGION, (A, B), 14.0)
    assert colours(one, 15.0)[Hop.REGION] is HopColour.RED
    one.see(1, Hop.REGION, (A, B), 16.0)
    assert colours(one, 17.0)[Hop.REGION] is HopColour.GREEN


def test_what_was_lost_for_good_is_over_when_enough_have_come_after_it() -> None:
    one = Ledger()
    found = []
    for number in range(6):
        one.begin(number, 20.0 * number)
        if number:
            one.see(number, Hop.REGION, (A, B), 20.0 * number + 1)
        found.append(colours(one, 20.0 * number + 11)[Hop.REGION])
    assert found == [HopColour.RED] * RECENT + [HopColour.GREEN] * RECENT


@pytest.mark.parametrize("hop", [Hop.REGION, Hop.TABLE, Hop.USAGE])
def test_a_hop_that_loses_every_second_probe_is_never_green(hop: Hop) -> None:
    """Also where the next probe comes before the loss of the one before is due."""
    limits_s = LIMITS_S | {Hop.TABLE: 30.0, Hop.USAGE: 120.0}
    one = CanaryLedger(limits_s, lost_after_s=300.0, stale_after_s=60.0)
    found = set()
    for number in range(60):
        at_s = 20.0 * number
        one.send(number, ITEMS, at_s, at_s)
        for other in Hop:
            if other is not hop or number % 2:
                one.see(number, other, ITEMS[other], at_s + 1)
        if number >= 10:
            found |= {colours(one, at_s + later_s)[hop] for later_s in (2.0, 9.0, 11.0, 19.0)}
    assert HopColour.GREEN not in found


def test_no_hop_is_green_when_no_probe_is_sent_any_more() -> None:
    one = Ledger()
    one.begin(1, 0.0)
    one.see(1, Hop.REGION, (A, B), 1.0)
    assert colours(one, 499.0)[Hop.REGION] is HopColour.GREEN
    assert colours(one, 501.0)[Hop.REGION] is HopColour.UNKNOWN
    assert reason(one, Hop.REGION, 501.0) == "no probe was sent for 501 s"


def test_a_probe_that_was_not_sent_as_a_whole_says_nothing() -> None:
    one = Ledger()
    one.begin(1, 0.0)
    one.drop(1)
    assert set(colours(one, 50.0).values()) == {HopColour.UNKNOWN}
    assert len(one) == 0


def test_what_nobody_can_know_is_unknown_and_counts_for_nothing_and_what_is_behind_it_is_judged() -> None:
    one = Ledger()
    one.begin(1, 0.0)
    for hop in Hop:
        one.see(1, hop, ITEMS[hop], 1.0)
    one.cannot_know(1, Hop.USAGE, "a probe was cut")
    assert (colours(one, 2.0)[Hop.USAGE], reason(one, Hop.USAGE, 2.0)) == (HopColour.UNKNOWN, "a probe was cut")
    assert one.counts(Hop.USAGE, 0.0, 2.0) == HopCounts()
    assert colours(one, 2.0)[Hop.RATED] is HopColour.GREEN
    one.begin(2, 20.0)
    for hop in set(Hop) - {Hop.USAGE, Hop.RATED}:
        one.see(2, hop, ITEMS[hop], 21.0)
    one.cannot_know(2, Hop.USAGE, "a probe was cut")
    assert colours(one, 32.0)[Hop.RATED] is HopColour.GREEN, (
        "it has its own time, and that of the hop of which nothing is known"
    )
    assert colours(one, 42.0)[Hop.RATED] is HopColour.RED


def test_a_hop_that_is_not_watched_is_said_to_be_so_and_the_one_behind_it_is_judged() -> None:
    one = Ledger(set(Hop) - {Hop.CENTRE})
    one.begin(1, 0.0)
    one.see(1, Hop.REGION, (A, B), 1.0)
    assert colours(one, 2.0)[Hop.CENTRE] is HopColour.NOT_WATCHED
    assert colours(one, 12.0)[Hop.TABLE] is HopColour.RED


def test_a_hop_that_cannot_be_looked_at_is_red_once_something_is_due_and_says_why() -> None:
    one = Ledger()
    one.begin(1, 0.0)
    blind = {Hop.REGION: "connection refused"}
    early, late = (one.states(now_s, blind)[0] for now_s in (5.0, 20.0))
    assert early.colour is HopColour.UNKNOWN
    assert late.colour is HopColour.RED
    assert late.reason.endswith("it cannot be read: connection refused")


def test_the_service_level_counts_what_is_delayed_and_lost() -> None:
    one = Ledger()
    for number in range(3):
        one.begin(number, float(number))
    one.see(0, Hop.REGION, (A, B), 5.0)
    one.see(1, Hop.REGION, (A, B), 50.0)
    one.see(2, Hop.REGION, (A,), 5.0)
    counts = one.counts(Hop.REGION, 0.0, 60.0)
    assert (counts.consumed, counts.delayed, counts.lost, counts.level) == (5, 2, 0, 3 / 5)
    assert one.counts(Hop.REGION, 0.0, 200.0).level == 3 / 6
    assert one.counts(Hop.REGION, 2.0, 200.0).level == 1 / 2
    assert one.counts(Hop.REGION, 10.0, 200.0).level is None


def behind(hop: Hop) -> set[Hop]:
    found = {hop}
    while more := {one for one in Hop if PARENT[one] in found} - found:
        found |= more
    return found - {hop}


@pytest.mark.parametrize("broken", list(Hop))
def test_what_is_lost_at_a_hop_lowers_the_level_of_that_hop_alone(broken: Hop) -> None:
    one = Ledger()
    for number in range(10):
        one.begin(number, float(number))
        for hop in {*Hop} - (behind(broken) | {broken} if number == 0 else set()):
            one.see(number, hop, ITEMS[hop], number + 1.0)
    found = {hop: one.counts(hop, 0.0, 400.0) for hop in Hop}
    assert {hop for hop in Hop if found[hop].level != 1.0} == {broken}
    assert (found[broken].lost, found[broken].level) == (2, 0.9)
    assert all(found[hop].lost == 0 for hop in behind(broken))


@pytest.mark.parametrize("broken", list(Hop))
@pytest.mark.parametrize("fault", ["late", "wrong", "double"])
def test_what_comes_late_wrong_or_twice_and_goes_on_so_is_counted_and_red_at_the_first_hop_alone(
    broken: Hop, fault: str
) -> None:
    one = Ledger()
    one.begin(0, 0.0)
    for hop in Hop:
        is_struck = hop in behind(broken) | {broken}
        one.see(0, hop, ITEMS[hop], 50.0 if is_struck and fault == "late" else 1.0)
        if is_struck and fault == "wrong":
            one.judge(0, hop, "it is wrong")
        if is_struck and fault == "double":
            one.note_doubles(0, hop, 2)
    found = {hop: one.counts(hop, 0.0, 60.0) for hop in Hop}
    assert {hop for hop in Hop if found[hop].delayed + found[hop].wrong} == {broken}
    assert {state.hop for state in one.states(60.0) if state.colour is HopColour.RED} == {broken}
    if fault != "late":
        assert {hop for hop in Hop if reason(one, hop, 60.0) == f"what comes through {broken} is not right"} == behind(
            broken
        )


def test_latencies_are_from_the_device_time_of_each_item() -> None:
    one = Ledger()
    items = (ProbeItem("a", 1_000), ProbeItem("b", 2_000))
    one.send(1, {Hop.REGION: items}, 1.0, 2.0)
    assert one.see(1, Hop.REGION, items[1:], 2.5) == [0.5]
    assert one.see(1, Hop.REGION, items, 4.0) == [3.0], "what was seen before is not seen again"
    assert one.latencies(Hop.REGION, 0.0) == [0.5, 3.0]
    assert one.latencies(Hop.REGION, 2.0) == []


def test_only_the_newest_probes_are_kept() -> None:
    one = Ledger(most=2)
    for number in range(5):
        one.begin(number, 0.0)
    assert one.see(0, Hop.REGION, (A,), 1.0) == []
    assert one.numbers == one.waiting(Hop.REGION) == [3, 4]
    assert 4 in one
    assert 0 not in one
    assert one.see(4, Hop.REGION, (X,), 1.0) == [], "it is no item of it"


Step = tuple[int, Hop, str]
STEPS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(list(Hop)), st.sampled_from([*"abx", "double", "wrong", "right"])),
    max_size=60,
)


def take(one: Ledger, step: Step, now_s: float) -> None:
    number, hop, what = step
    match what:
        case "double":
            one.note_doubles(number, hop, 1)
        case "wrong" | "right":
            one.judge(number, hop, what.removeprefix("right"))
        case _:
            one.see(number, hop, [ProbeItem(what, 0)], now_s)


@given(STEPS)
def test_whatever_shows_in_which_order_counts_are_bounded_and_no_hop_is_green_without_a_whole_probe(
    shown: list[Step],
) -> None:
    one = Ledger()
    for number in range(3):
        one.begin(number, float(number))
    for at, step in enumerate(shown):
        take(one, step, float(at))
    for state in one.states(400.0):
        counts = one.counts(state.hop, 0.0, 400.0)
        assert counts.consumed + counts.lost <= 6
        assert 0.0 <= (counts.level or 0.0) <= 1.0
        if state.colour is HopColour.GREEN:
            assert counts.consumed >= 2
