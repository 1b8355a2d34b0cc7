"""What no webhook took, on its way into the topics of its tenants: none waits for another."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from gateway.webhooks.delivery import EndedDelivery
from gateway.webhooks.undelivered_topic import UndeliveredTopic

__all__ = ["MAX_WAITING", "UndeliveredWriter"]

MAX_WAITING: Final = 5000
"""Of all tenants together, in equal shares: while more wait than a tenant's, nothing more of it is read."""
# what is not written by then was not acknowledged, and comes again
_CLOSE_S: Final = 5.0


class UndeliveredWriter:
    """`topic_of` names a tenant's topic; `tenants`: how many there are. In the thread of a topic `on_written` hears of
    each message that Pulsar has, and `on_dropped` of each that cannot be kept."""

    def __init__(
        self,
        open_client: Callable[[], Any],
        topic_of: Callable[[str], str],
        on_written: Callable[[EndedDelivery], object],
        on_dropped: Callable[[EndedDelivery], object] = lambda _: None,
        *,
        tenants: int = 1,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._open_client, self._topic_of, self._clock = open_client, topic_of, clock
        self._on_written, self._on_dropped = on_written, on_dropped
        self._most = max(MAX_WAITING // tenants, 1)
        self._topics: dict[str, UndeliveredTopic] = {}
        self._is_started = False

    def __len__(self) -> int:
        return sum(len(one) for one in [*self._topics.values()])

    def is_full(self, tenant: str) -> bool:
        """Whether nothing more of a tenant is to be given up now."""
        found = self._topics.get(tenant)
        return found is not None and len(found) >= self._most

    @property
    def is_running(self) -> bool:
        """Whether all its threads run."""
        return all(one.is_running for one in self._topics.values())

    @property
    def problems(self) -> dict[str, str]:
        """The topics to which nothing can be written, and why."""
        return {one.name: one.problem for one in self._topics.values() if one.problem}

    def start(self) -> None:
        """Begins to write."""
        self._is_started = True
        for one in self._topics.values():
            one.start()

    def add(self, ended: EndedDelivery) -> None:
        """This one was given up. Whoever has something for the first time gets a thread and a client of its own."""
        tenant = ended.delivery.tenant
        found = self._topics.get(tenant)
        if found is None:
            found = UndeliveredTopic(
                self._open_client, self._topic_of(tenant), self._on_written, self._on_dropped, self._clock
            )
            self._topics[tenant] = found
            if self._is_started:
                found.start()
        found.add(ended)

    def close(self) -> None:
        """Writes what waits if that is quick; the rest comes again after a start."""
        ends_s = time.monotonic() + _CLOSE_S
        for one in self._topics.values():
            one.stop()
        for one in self._topics.values():
            one.join(ends_s)
