"""One query at a time reads a durable subscription: seen in the topic's own statistics, for as long as the query runs.

Each query keeps a reader open on each topic partition that it reads. It has no cursor on disk, holds nothing back, is
sent nothing, and ends with the process. The admin REST names it beside the subscription, so whoever plans a batch sees
who else is there. A query that begins is a *candidate*: it opens readers that say so, looks then, and opens an owner's
readers when nobody else is there. Of two candidates at least one sees the other, however long a look lasts, and the
younger one leaves; an owner leaves to no candidate. A candidate looks at the other clusters of its options too: what
was read there is acknowledged here by the replicated cursor.
"""

import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pulsar

from cloud_jobs.pulsar_source.cluster.clients import shared_client, to_source_error
from cloud_jobs.pulsar_source.cluster.partition_state import PartitionState, Role, reader_prefix
from cloud_jobs.pulsar_source.cluster.survey import ClusterView
from cloud_jobs.pulsar_source.errors import SubscriptionBusy
from cloud_jobs.pulsar_source.options import PulsarOptions, SourceCluster

_PARALLEL = 8
_PAUSE_S = 0.2

Close = Callable[[], None]
OtherViews = Callable[[str], Iterable[ClusterView]]
_Key = tuple[str, str]
"""Cluster and topic partition."""


def open_presence(cluster: SourceCluster, options: PulsarOptions, topic: str, role: Role, token: str) -> Close:
    """Opens the reader that stands for a query on a topic partition; returns how it is closed, without waiting."""
    prefix = reader_prefix(options.subscription_name(), role) + token
    try:
        # Without a queue the broker sends it nothing: what comes first could end the process.
        reader: Any = shared_client(cluster, options).create_reader(
            topic, pulsar.MessageId.latest, receiver_queue_size=0, subscription_role_prefix=prefix
        )
    except pulsar.PulsarException as error:
        raise to_source_error(cluster, f"opening the {role}'s reader on {topic}", error) from error
    return lambda: reader._reader.close_async(lambda _: None)  # noqa: SLF001  # a cluster that is gone does not answer


def _no_views(_: str) -> Iterable[ClusterView]:
    return ()


class Ownership:
    """What one query owns of its subscription; one thread."""

    def __init__(
        self,
        options: PulsarOptions,
        opener: Callable[[SourceCluster, PulsarOptions, str, Role, str], Close] = open_presence,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
        token: str | None = None,
    ) -> None:
        self._options = options
        self._open = opener
        self._clock = clock
        self._pause = pause
        # Begins with the time, so that the query that runs longer comes before the others.
        self._token = token or f"{time.time_ns():016x}{uuid4().hex[:8]}"
        self._candidate: dict[_Key, Close] = {}
        self._owned: dict[_Key, Close] = {}
        self._waiting_since: float | None = None

    def close(self) -> None:
        """Gives everything up."""
        _release(self._candidate, list(self._candidate))
        _release(self._owned, list(self._owned))

    def claim(self, view: ClusterView, elsewhere: OtherViews = _no_views) -> bool:
        """Whether this query owns the subscription of every partition in the view; otherwise look again and ask again.

        `elsewhere`: how the clusters other than a named one stand, those that answer.

        Raises SubscriptionBusy when another query holds it for `readTimeoutSeconds`, or has come to own it meanwhile.
        """
        keys = {(view.cluster.name, partition) for partition in view.states}
        _release(self._candidate, self._candidate.keys() - keys)
        _release(self._owned, self._owned.keys() - keys)
        self._check_owners(view)
        missing = sorted(keys - self._owned.keys())
        return not missing or self._become_owner(view, missing, elsewhere)

    def _open_all(self, cluster: SourceCluster, role: Role, keys: Collection[_Key], opened: dict[_Key, Close]) -> None:
        with ThreadPoolExecutor(max_workers=_PARALLEL) as pool:
            opening = {key: pool.submit(self._open, cluster, self._options, key[1], role, self._token) for key in keys}
        # Those that were opened count even where another one failed: they have to be closed.
        opened |= {key: future.result() for key, future in opening.items() if future.exception() is None}
        for future in opening.values():
            future.result()

    def _become_owner(self, view: ClusterView, missing: list[_Key], elsewhere: OtherViews) -> bool:
        others = list(self._others(view, {partition for _, partition in missing}, elsewhere))
        if before_us := [place for place, state in others if self._comes_after(state)]:
            self._wait(before_us[0], leaving=missing)
        elif new := [key for key in missing if key not in self._candidate]:
            self._open_all(view.cluster, "candidate", new, self._candidate)
        elif others:
            self._wait(others[0][0], leaving=())
        # A broker that does not show our own reader may not show another's either: its answer proves nothing.
        elif unseen := [key for key in missing if self._token not in _present(view.states[key[1]])]:
            self._wait(unseen[0], leaving=missing)
        else:
            # The candidate's readers stay until the owner's are there: whoever looks sees one of them.
            self._open_all(view.cluster, "owner", missing, self._owned)
            _release(self._candidate, self._candidate.keys() & self._owned.keys())
            self._waiting_since = None
            return True
        return False

    def _others(
        self, view: ClusterView, partitions: AbstractSet[str], elsewhere: OtherViews
    ) -> Iterator[tuple[_Key, PartitionState]]:
        """Where another query is seen, on any cluster."""
        for seen in (view, *elsewhere(view.cluster.name)):
            for partition in sorted(partitions & seen.states.keys()):
                if _present(seen.states[partition]) - {self._token}:
                    yield (seen.cluster.name, partition), seen.states[partition]

    def _comes_after(self, state: PartitionState) -> bool:
        """Whether this candidate makes room for a query there: an owner, or a candidate that is older."""
        return bool(state.owners - {self._token}) or any(name < self._token for name in state.candidates)

    def _wait(self, place: _Key, leaving: Iterable[_Key]) -> None:
        now = self._clock()
        self._waiting_since = self._waiting_since if self._waiting_since is not None else now
        if now - self._waiting_since >= self._options.read_timeout_seconds:
            waited_s, self._waiting_since = now - self._waiting_since, None
            raise SubscriptionBusy(*place, self._options.subscription_name(), waited_s)
        _release(self._candidate, leaving)
        self._pause(_PAUSE_S * (0.5 + random.random()))

    def _check_owners(self, view: ClusterView) -> None:
        """The younger of two owners ends; there are two only where a broker forgot the older one for a moment."""
        for _, partition in sorted(key for key in self._owned if key[0] == view.cluster.name):
            if min(view.states[partition].owners, default=self._token) < self._token:
                raise SubscriptionBusy(view.cluster.name, partition, self._options.subscription_name(), 0.0)


def _present(state: PartitionState) -> frozenset[str]:
    return state.owners | state.candidates


def _release(opened: dict[_Key, Close], keys: Iterable[_Key]) -> None:
    for key in list(keys):
        if close := opened.pop(key, None):
            close()
