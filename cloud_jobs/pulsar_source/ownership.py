"""One query at a time reads a durable subscription: seen in the topic's own statistics, for as long as the query runs.

Each query keeps a reader open on each topic partition that it reads. It has no cursor on disk, holds nothing back, and
ends with the process. The admin REST names it beside the subscription, so whoever plans a batch sees who else is there.
A query that begins opens its readers first and looks then: of two that begin at once at least one sees the other. It
looks at the other clusters of its options too: what was read there is acknowledged here by the replicated cursor.
"""

import random
import time
from collections.abc import Callable, Collection, Iterable
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pulsar
import structlog

from cloud_jobs.pulsar_source.clients import as_our_error, kept_client
from cloud_jobs.pulsar_source.errors import SubscriptionBusy
from cloud_jobs.pulsar_source.ledgers import owner_prefix
from cloud_jobs.pulsar_source.options import Cluster, PulsarOptions
from cloud_jobs.pulsar_source.watching import View

_log = structlog.get_logger(__name__)
_PARALLEL = 8
_PAUSE_S = 0.2
_INTRUDER_S = 2.0
"""How long another owner is seen before a query that owns the subscription gives up: one that only tries is gone."""

Close = Callable[[], None]
Elsewhere = Callable[[str], Iterable[View]]


def open_owner(cluster: Cluster, options: PulsarOptions, topic: str, token: str) -> Close:
    """Opens the reader that stands for a query on a topic partition; returns how it is closed, without waiting."""
    prefix = owner_prefix(options.subscription_name()) + token
    try:
        reader: Any = kept_client(cluster, options).create_reader(
            topic, pulsar.MessageId.latest, receiver_queue_size=1, subscription_role_prefix=prefix
        )
    except pulsar.PulsarException as error:
        raise as_our_error(cluster, f"opening the owner's reader on {topic}", error) from error
    return lambda: reader._reader.close_async(lambda _: None)  # noqa: SLF001  # a cluster that is gone does not answer


def _nowhere(_: str) -> Iterable[View]:
    return ()


class Ownership:
    """What one query owns of its subscription; one thread."""

    def __init__(
        self,
        options: PulsarOptions,
        opener: Callable[[Cluster, PulsarOptions, str, str], Close] = open_owner,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = options
        self._open = opener
        self._clock = clock
        self._pause = pause
        self._token = _new_token()
        self._opened: dict[tuple[str, str], Close] = {}
        self._owned: set[tuple[str, str]] = set()
        self._seen_since: dict[str, float] = {}
        self._waiting_since: float | None = None

    def close(self) -> None:
        """Gives everything up."""
        self._release(list(self._opened))

    def claim(self, view: View, elsewhere: Elsewhere = _nowhere) -> bool:
        """Whether this query owns the subscription of every partition in the view; otherwise look again and ask again.

        `elsewhere`: how the clusters other than a named one stand, those that answer.

        Raises SubscriptionBusy when another query holds it for `readTimeoutSeconds`.
        """
        keys = {(view.cluster.name, partition) for partition in view.states}
        self._release([key for key in self._opened if key not in keys])
        if new := sorted(keys - set(self._opened)):
            self._open_all(view.cluster, new)
            return False
        if keys <= self._owned:
            self._check_intruders(view, keys)
            return True
        return self._decide(view, keys - self._owned, elsewhere)

    def _open_all(self, cluster: Cluster, keys: list[tuple[str, str]]) -> None:
        with ThreadPoolExecutor(max_workers=_PARALLEL) as pool:
            opening = {
                key: pool.submit(self._open, cluster, self._options, partition, self._token)
                for key in keys
                for partition in [key[1]]
            }
        self._opened |= {key: future.result() for key, future in opening.items() if future.exception() is None}
        for future in opening.values():
            future.result()

    def _decide(self, view: View, keys: Collection[tuple[str, str]], elsewhere: Elsewhere) -> bool:
        stranger = self._stranger(view, {partition for _, partition in keys}, elsewhere)
        if stranger is None:
            self._owned |= set(keys)
            self._waiting_since = None
            return True
        now = self._clock()
        self._waiting_since = self._waiting_since if self._waiting_since is not None else now
        self._release(keys)
        if now - self._waiting_since >= self._options.read_timeout_seconds:
            waited_s, self._waiting_since = now - self._waiting_since, None
            raise SubscriptionBusy(*stranger, self._options.subscription_name(), waited_s)
        # Drawn anew, so that an owner can tell one who waits from one who stays.
        self._token = _new_token() if not self._opened else self._token
        self._pause(_PAUSE_S * (0.5 + random.random()))  # two that wait must not meet for ever
        return False

    def _stranger(self, view: View, partitions: AbstractSet[str], elsewhere: Elsewhere) -> tuple[str, str] | None:
        """The cluster and the partition where another query is seen, or where we are not seen ourselves."""
        for partition in sorted(partitions):
            if view.states[partition].owners != {self._token}:
                return view.cluster.name, partition
        for other in elsewhere(view.cluster.name):
            for partition in sorted(partitions & other.states.keys()):
                if other.states[partition].owners - {self._token}:
                    return other.cluster.name, partition
        return None

    def _check_intruders(self, view: View, keys: Collection[tuple[str, str]]) -> None:
        now = self._clock()
        seen = {name: part for _, part in keys for name in view.states[part].owners if name != self._token}
        self._seen_since = {name: self._seen_since.get(name, now) for name in seen}
        for name, since in self._seen_since.items():
            if now - since >= _INTRUDER_S:
                raise SubscriptionBusy(view.cluster.name, seen[name], self._options.subscription_name(), now - since)

    def _release(self, keys: Collection[tuple[str, str]]) -> None:
        for key in list(keys):
            self._opened.pop(key)()
            self._owned.discard(key)


def _new_token() -> str:
    return uuid4().hex[:12]
