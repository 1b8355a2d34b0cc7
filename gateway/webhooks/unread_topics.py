"""Topics that nobody reads, as a standby finds them: who has the alerts may have other tenants or regions than it.

One that has the first topic is taken for one that has them all. So a standby looks at one of the others at a time,
whether it could have it, and gives it back at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Final

import pulsar

__all__ = ["READ_BY_NOBODY", "UnreadTopics"]

READ_BY_NOBODY: Final = "nobody reads it: the notifier that has the alerts has other tenants or regions"


class UnreadTopics:
    """`found`: those that were free twice in a row, as one that is lost is free for a moment, and why that is so."""

    def __init__(self, subscription: str, topics: Iterable[str]) -> None:
        self._subscription, self._left = subscription, deque(topics)
        self._was_free = False
        self.found: dict[str, str] = {}

    def look(self, client: Any) -> None:
        """Whether the next topic has a reader; the same one again where it had none for the first time."""
        if not self._left:
            return
        name, is_free = self._left[0], self._is_free(client, self._left[0])
        if is_free and not self._was_free and name not in self.found:
            self._was_free = True
            return
        self._was_free = False
        self._left.rotate(-1)
        if is_free:
            self.found = self.found | {name: READ_BY_NOBODY}
        else:
            self.found = {one: why for one, why in self.found.items() if one != name}

    def forget(self) -> None:
        """This process has them."""
        self._was_free, self.found = False, {}

    def _is_free(self, client: Any, name: str) -> bool:
        try:
            partition = client.get_topic_partitions(name)[0]
            # of a queue without room: nothing is read ahead that would come again
            consumer = client.subscribe(
                partition, self._subscription, receiver_queue_size=0, initial_position=pulsar.InitialPosition.Earliest
            )
            consumer.close()
        except pulsar.PulsarException:
            # that of another one, or not known
            return False
        return True
