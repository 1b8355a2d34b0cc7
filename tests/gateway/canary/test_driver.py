"""Which probes are sent when, whatever the clock does: none twice, as what it sent is there already."""

import threading
from pathlib import Path

import pytest

from gateway.canary.config import Hop
from gateway.canary.ledger import HopColour
from gateway.canary.probes import SentProbes
from gateway.canary.service import ProbeDriver
from gateway.canary.watch import CanaryWatch
from tests.gateway.canary.canaries import canary_settings

NOON_S = 1_767_614_400.0
PERIOD_S = 20


class SteppedClock(threading.Event):
    """A clock that waits move on, and a stop that comes after so long. `steps`: at which moment of ours it is set by
    how much."""

    def __init__(self, ends_s: float, steps: dict[float, float]) -> None:
        super().__init__()
        self._passed_s, self._offset_s, self._ends_s, self._steps = 0.0, 0.0, ends_s, dict(steps)

    def now_s(self) -> float:
        return NOON_S + self._passed_s + self._offset_s

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        # a wait is by a clock that nobody sets
        self._passed_s += timeout
        for at_s in [one for one in self._steps if one <= self._passed_s]:
            self._offset_s += self._steps.pop(at_s)
        return self.is_set()

    def is_set(self) -> bool:
        return self._passed_s >= self._ends_s


def sent_by(folder: Path, clock: SteppedClock) -> tuple[list[int], CanaryWatch]:
    watch, sent = CanaryWatch(canary_settings(folder), clock.now_s), list[int]()
    probes = SentProbes(after_cut=False)

    def publish(number: int) -> None:
        sent.append(number)
        clock.wait(watch.script.driven_ms / 1000)
        watch.show(number, Hop.REGION, watch.record_items(number))

    ProbeDriver(watch, probes, publish, clock).run()
    return sent, watch


def test_one_probe_a_period_is_sent(tmp_path: Path) -> None:
    sent, _ = sent_by(tmp_path, SteppedClock(10 * PERIOD_S, {}))
    assert sent == [*range(sent[0], sent[0] + len(sent))]
    assert 9 <= len(sent) <= 11


@pytest.mark.parametrize("back_s", [PERIOD_S, 90.0, 400.0])
def test_a_clock_that_is_set_back_sends_no_probe_twice_and_goes_on_when_it_is_past_the_last(
    tmp_path: Path, back_s: float
) -> None:
    sent, _ = sent_by(tmp_path, SteppedClock(900 + back_s, {450.0: -back_s}))
    assert sent == sorted({*sent})
    assert sent[-1] >= sent[0] + 900 // PERIOD_S - 3


def test_no_hop_is_green_while_the_clock_is_far_behind_the_newest_probe(tmp_path: Path) -> None:
    _, watch = sent_by(tmp_path, SteppedClock(350.0, {300.0: -200.0}))
    states = {one.hop: one for one in watch.status().hops}
    assert states[Hop.REGION].colour is HopColour.UNKNOWN
    assert "the clock was set back" in states[Hop.REGION].reason
