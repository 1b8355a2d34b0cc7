"""Which probes are sent when, whatever the clock does: none twice, as what it sent is there already."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from deploy.canary import probes as sent_probes
from deploy.canary.config import Hop
from deploy.canary.ledger import HopColour
from deploy.canary.probes import SentProbes
from deploy.canary.service import ProbeDriver
from deploy.canary.watch import CanaryWatch
from tests.deploy.canary.canaries import canary_settings

NOON_S = 1_767_614_400.0
PERIOD_S = 20


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of days is sent within seconds; what the disk keeps is not looked at here."""
    monkeypatch.setattr(sent_probes, "replace_durably", lambda file, data: file.write_bytes(data))


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
    """The probes that were sent, in order."""
    watch, sent = CanaryWatch(canary_settings(folder), clock.now_s), list[int]()
    probes = SentProbes(folder / "sent.json", has_sent_before=False)

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


@pytest.mark.parametrize("back_s", [4.9 * 3600.0, 10 * 365 * 86_400.0])
def test_a_clock_that_is_set_back_by_more_than_the_ledger_remembers_sends_no_probe_twice(
    tmp_path: Path, back_s: float
) -> None:
    ran_s = 5 * 3600.0
    steps = {ran_s: -back_s, ran_s + 1_000: back_s, ran_s + 2_000: -back_s / 2}
    sent, _ = sent_by(tmp_path, SteppedClock(ran_s + 3_000, steps))
    assert len(sent) == len({*sent})


def test_a_clock_that_was_ahead_for_hours_sends_what_was_not_sent_and_nothing_twice(tmp_path: Path) -> None:
    ahead_s, ends_s = 3_600 * 86_400.0, 4.5 * 3600.0
    sent, _ = sent_by(tmp_path, SteppedClock(ends_s + 2_000, {100.0: ahead_s, ends_s: -ahead_s}))
    assert len(sent) == len({*sent})
    # the last 2,000 s, beside the 100 s of before
    assert len([number for number in sent if number < sent[0] + 86_400]) >= 100


def test_a_disk_that_is_full_cuts_a_probe_and_ends_no_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sent_probes, "replace_durably", full)
    sent, _ = sent_by(tmp_path, SteppedClock(10 * PERIOD_S, {}))
    assert sent == []


def test_a_clock_that_was_ahead_for_a_while_sends_what_was_not_sent_and_nothing_twice(tmp_path: Path) -> None:
    # it comes to what it sent while it was ahead
    sent, _ = sent_by(tmp_path, SteppedClock(1_500.0, {200.0: 600.0, 400.0: -600.0}))
    assert len(sent) == len({*sent})
    after = {*range(sent[0] + 22, sent[0] + 72)}
    assert len(after - {*sent}) <= 4


def test_a_clock_that_is_set_right_again_is_not_waited_for_any_longer(tmp_path: Path) -> None:
    sent, _ = sent_by(tmp_path, SteppedClock(1_000.0, {300.0: -3_600.0, 500.0: 3_600.0}))
    assert len(sent) >= (1_000 - 200) // PERIOD_S - 4


def test_no_hop_is_green_while_the_clock_is_far_behind_the_newest_probe(tmp_path: Path) -> None:
    _, watch = sent_by(tmp_path, SteppedClock(350.0, {300.0: -200.0}))
    states = {one.hop: one for one in watch.status().hops}
    assert states[Hop.REGION].colour is HopColour.UNKNOWN
    assert "the clock was set back" in states[Hop.REGION].reason


def test_what_was_begun_is_known_after_a_start_too_also_where_it_was_cut(tmp_path: Path) -> None:
    sent = SentProbes(tmp_path / "sent.json", has_sent_before=False)
    sent.begin(40, 0)
    sent.end()
    sent.begin(41, 0)
    sent.cut()
    again = SentProbes(tmp_path / "sent.json", has_sent_before=True)
    assert [again.first_not_begun(number) for number in range(38, 44)] == [38, 39, 42, 42, 42, 43]
