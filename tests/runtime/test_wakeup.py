"""A loop is woken from another thread and by signals, and never left asleep."""

from __future__ import annotations

import os
import select
import signal
import threading

from waybill.daemon.signals import WakeUp


def is_awake(wake_up: WakeUp, timeout_s: float = 0.0) -> bool:
    return bool(select.select([wake_up.socket], [], [], timeout_s)[0])


def test_nothing_that_another_thread_hands_over_before_it_wakes_is_missed() -> None:
    wake_up, handed, taken = WakeUp(), [0], 0

    def hand_over() -> None:
        for number in range(1, 5001):
            handed[0] = number
            wake_up.wake()

    thread = threading.Thread(target=hand_over)
    thread.start()
    while taken < 5000:
        assert is_awake(wake_up, 30), f"asleep with {handed[0] - taken} waiting"
        wake_up.clear()
        taken = handed[0]
    thread.join()
    wake_up.close()


def test_signals_wake_and_are_collected_while_they_are_asked_for_and_then_go_to_whom_they_went_before() -> None:
    wake_up, before = WakeUp(), signal.getsignal(signal.SIGHUP)
    with wake_up.on_signals((signal.SIGHUP,)) as seen:
        os.kill(os.getpid(), signal.SIGHUP)
        assert is_awake(wake_up, 30)
        assert seen == {signal.SIGHUP}
    assert signal.getsignal(signal.SIGHUP) is before
    wake_up.close()
