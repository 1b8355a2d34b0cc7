"""The driver: sends a probe at the beginning of each period, and keeps what it sent."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import structlog

from deploy.canary.errors import ProbeCut
from deploy.canary.sent_probes import SentProbes
from deploy.canary.watch import CanaryWatch

__all__ = ["ProbeDriver"]

_LATE_MS: Final = 500
"""A period that began so long ago is passed over: its fixes would be published late."""
_PERIODS: Final = 2
"""The next probe but one begins sooner than in so many."""
_LOG = structlog.get_logger("canary")


class ProbeDriver:
    """Sends probes until `stop` is set. `publish` takes the number of a probe, and raises ProbeCut."""

    def __init__(
        self, watch: CanaryWatch, sent: SentProbes, publish: Callable[[int], None], stop: threading.Event
    ) -> None:
        self._watch, self._sent, self._publish, self._stop = watch, sent, publish, stop

    def run(self) -> None:
        """Sends one probe after the other."""
        period_s = self._watch.script.settings.period_s
        while not self._stop.is_set():
            number = self._next()
            left_s = self._watch.script.begins_ms(number) / 1000 - self._watch.clock()
            # behind what was sent by a clock that was set back since, which may be set right meanwhile
            if left_s > _PERIODS * period_s:
                self._stop.wait(period_s)
            elif left_s <= 0 or not self._stop.wait(left_s):
                self.send(number)

    def send(self, number: int) -> None:
        """Sends one probe: on disk before it begins, and when it has ended."""
        try:
            # in this order: what is killed in between was cut, and is known to be
            self._sent.begin(number, self._watch.script.quarter_of(number))
            self._watch.send(number)
            self._publish(number)
            self._sent.end()
        except (ProbeCut, OSError) as error:
            self._watch.drop(number, str(error))
            self._watch.metrics.on_probe(self._watch.clock(), is_whole=False)
            _LOG.warning("a probe was cut", number=number, error=str(error))
            # of a full disk: in memory it was cut, and what is on disk says nothing else
            with suppress(OSError):
                self._sent.cut()
        else:
            self._watch.metrics.on_probe(self._watch.clock(), is_whole=True)

    def _next(self) -> int:
        """The next probe that is still to begin, where the last one ended, and that was not begun before."""
        # not the next one that is planned: after a pause the ones between are passed over
        script, now_ms = self._watch.script, round(self._watch.clock() * 1000)
        number = self._sent.first_not_begun(script.number_at(now_ms - _LATE_MS) + 1)
        while not self._sent.may_follow(number):
            number = self._sent.first_not_begun(number + 1)
        return number
