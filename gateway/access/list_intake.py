"""Revocation lists that come by the topic: whose holds, which wait for their time, and whether ours was displaced."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import structlog
from cryptography import x509

from gateway.access.core import AccessCore
from gateway.access.metrics import AccessMetrics
from gateway.access.own_list import OwnList
from gateway.access.revocation import ListRefused, RevocationList, read_list_message
from waybill.pulsar.cluster_clock import MAX_CLOCK_DIFFERENCE_S
from waybill.pulsar.compacted_topic import TopicMessage

__all__ = ["ListIntake"]

MAX_PAUSE_TICKS: Final = 3600
"""Between two answers to lists by another key, at most: who signs these may answer ours."""
TWIN_S: Final = 3600.0
"""For so long after its last list another daemon is named."""
_LOG = structlog.get_logger("access")


class ListIntake:
    """What becomes of each list. `root`: who signs the authorities that may have one."""

    def __init__(
        self,
        core: AccessCore,
        own: OwnList,
        root: x509.Certificate,
        metrics: AccessMetrics,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._core, self._own, self._root, self._metrics = core, own, root, metrics
        self._ahead: dict[str, RevocationList] = {}
        self._is_displaced = False
        self._of_other_key: RevocationList | None = None
        self._pause_ticks, self._wait_ticks = 1, 0
        self._live_at_s, self._twin_until_s, self._twin = clock() + MAX_CLOCK_DIFFERENCE_S, 0.0, ""

    @property
    def problem(self) -> str:
        """That somebody else signs lists of our authority's name: by our key, or by another one, again and again."""
        if self._twin:
            return self._twin
        if (found := self._of_other_key) is None:
            return ""
        return (
            f"revocation list {found.number} of {found.issuer!r} is signed by another key than ours, and so were some"
            " before: end the access daemon that runs with a former authority of this region"
        )

    def take(self, message: TopicMessage, now_s: float) -> None:
        """A message of the topic."""
        try:
            found = read_list_message(message.key, message.body, self._root)
        except ListRefused as refused:
            self._metrics.lists.labels("refused").inc()
            _LOG.warning("revocation list refused", problem=str(refused))
            self._is_displaced |= message.key == self._own.issuer
            return
        if found.issuer == self._own.issuer:
            self._look_for_twin(found, message.published_ms / 1000, now_s)
            self._take_own(found, now_s)
            return
        # A broker refuses everybody of an issuer whose list begins later: it waits for its time, on whichever side
        # the clock is wrong.
        if found.this_update.timestamp() > now_s:
            _LOG.warning("a revocation list begins in the future, and waits", issuer=found.issuer, at=found.this_update)
            self._ahead[found.issuer] = found
            self._metrics.lists.labels("ahead").inc()
            return
        self._metrics.lists.labels("taken" if self._core.on_list(found, now_s) else "held already").inc()

    def take_due(self, now_s: float) -> None:
        """Those that waited for their time, and have it. Called each second."""
        self._wait_ticks = max(self._wait_ticks - 1, 0)
        if now_s >= self._twin_until_s:
            self._twin = ""
        waiting, self._of_other_key = self._of_other_key, None
        if waiting is not None:
            self._take_own(waiting, now_s)
        for issuer in [one.issuer for one in self._ahead.values() if one.this_update.timestamp() <= now_s]:
            self._core.on_list(self._ahead.pop(issuer), now_s)

    def take_displaced(self) -> bool:
        """Whether something stands on the topic behind our own list since the last call: compaction would keep that."""
        is_displaced, self._is_displaced = self._is_displaced, False
        return is_displaced

    def _look_for_twin(self, found: RevocationList, published_s: float, now_s: float) -> None:
        # Of before our start, by whichever clock: it was our own, and our disk may be an older one.
        if published_s < self._live_at_s or not self._own.is_of_another(found):
            return
        self._twin_until_s = now_s + TWIN_S
        self._twin = (
            f"revocation list {found.number} of {found.issuer!r} is signed by our key, and not by this daemon: another"
            " one of this region runs, as from a copy of its machine; end one of them, or a claim may be good twice"
        )
        _LOG.error("another access daemon of this region", number=found.number)

    def _take_own(self, found: RevocationList, now_s: float) -> None:
        is_ours = self._own.is_by_us(found)
        # Two daemons of one name would answer each other for good: the next list by another key waits longer.
        if not is_ours and self._wait_ticks:
            self._of_other_key = found
            return
        # Our own comes back from the topic; one that is later than ours shows that our disk is an older one, and one by
        # another key that our authority was made anew: the core takes its serials, and the next step signs them.
        if self._own.follow(found):
            self._core.on_own_list(found, now_s)
            if not is_ours:
                _LOG.warning("a list by another key of our authority is followed", number=found.number)
                self._wait_ticks, self._pause_ticks = self._pause_ticks, min(self._pause_ticks * 4, MAX_PAUSE_TICKS)
        elif self._own.current is not None and self._own.current.is_later(found):
            self._is_displaced = True
