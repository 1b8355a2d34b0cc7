"""What does not close is not waited for."""

from __future__ import annotations

import threading
import time

from waybill.daemon.process import close_within


def test_all_are_closed_at_once_and_one_that_hangs_is_left_when_the_time_is_over() -> None:
    closed, hangs = list[int](), threading.Event()
    began_s = time.monotonic()
    assert not close_within([lambda: closed.append(1), hangs.wait, hangs.wait, lambda: closed.append(2)], 0.2)
    assert (sorted(closed), 0.1 < time.monotonic() - began_s < 5) == ([1, 2], True)
    hangs.set()
    assert close_within([hangs.wait, lambda: closed.append(3)])
    assert closed[-1] == 3
