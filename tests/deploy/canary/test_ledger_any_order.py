"""Whatever shows at hops in whatever order: counts stay within what was sent, and totals grow to the end of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deploy.canary.config import Hop, ProbeItem
from deploy.canary.ledger import HopColour, HopCounts
from tests.deploy.canary.test_ledger import Ledger

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
        counts = one.counts(state.hop, 0.0, 3.0, 400.0)
        assert counts.consumed + counts.lost + counts.not_reached == 6
        assert 0.0 <= (counts.level or 0.0) <= 1.0
        if state.colour is HopColour.GREEN:
            assert counts.consumed >= 2


@given(STEPS, st.integers(1, 20))
def test_totals_only_grow_and_in_the_end_have_all_that_was_ever_counted(shown: list[Step], every: int) -> None:
    one, totals = Ledger(), dict.fromkeys(Hop, HopCounts())

    def add(now_s: float) -> None:
        for hop in Hop:
            totals[hop] += one.take_news(hop, now_s)

    for number in range(3):
        one.begin(number, float(number))
    for at, step in enumerate(shown):
        take(one, step, float(at))
        if at % every == 0:
            add(float(at))
    add(400.0)
    for hop in Hop:
        last = one.counts(hop, 0.0, 3.0, 400.0)
        assert totals[hop].growth(last) == HopCounts(
            *(getattr(totals[hop], name) - getattr(last, name) for name in HopCounts.__slots__)
        )
        assert totals[hop].consumed == last.consumed
        assert one.take_news(hop, 400.0) == HopCounts()
