"""No input writes the disk full of log."""

from __future__ import annotations

from typing import Any

import structlog

from waybill.daemon.logs import BURST, LineLimit


class LogClock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def lines(limit: LineLimit, count: int, **values: Any) -> list[Any]:
    passed = []
    for _ in range(count):
        try:
            passed.append(limit(None, "warning", {"event": "refused", **values}))
        except structlog.DropEvent:
            continue
    return passed


def test_a_flood_of_one_kind_is_cut_and_counted_and_other_kinds_pass() -> None:
    clock = LogClock()
    limit = LineLimit(clock)
    assert len(lines(limit, 3000)) == BURST
    assert limit(None, "warning", {"event": "subscribed"}) == {"event": "subscribed"}
    assert limit(None, "error", {"event": "refused"}) == {"event": "refused"}, "another level is another kind"
    clock.now_s = 1.0
    assert lines(limit, 5)[0]["suppressed"] == 3000 - BURST
    assert limit.take_suppressed() == {"warning refused": 4}
    assert limit.take_suppressed() == {}
