"""What no webhook took, on its way into the topics of its tenants: none waits for another."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import pulsar
import structlog

from gateway.webhooks.delivery import EndedDelivery
from gateway.webhooks.errors import UndeliveredUnfit
from gateway.webhooks.undelivered_message import encode_undelivered
from gateway.webhooks.undelivered_queue import ensure_subscription
from waybill.daemon.backoff import Backoff
from waybill.pulsar.pulsar_client import PulsarAccessError, close_quietly

# What no webhook took of one tenant, on its way into its topic: again and again until Pulsar has it.

_LOG = structlog.get_logger("webhooks")


class UndeliveredTopic:
    """A thread with a client of its own, so that no other tenant waits for this one.

    In its thread `on_written` hears of each message that Pulsar has, and `on_dropped` of each that cannot be kept.
    """

    def __init__(
        self,
        open_client: Callable[[], Any],
        name: str,
        on_written: Callable[[EndedDelivery], object],
        on_dropped: Callable[[EndedDelivery], object],
        clock: Callable[[], float],
    ) -> None:
        self.name = name
        self._open_client, self._clock = open_client, clock
        self._on_written, self._on_dropped = on_written, on_dropped
        self._waiting: deque[EndedDelivery] = deque()
        self._changed, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"writes {name}", daemon=True)
        self._backoff = Backoff(0.2, 10.0, random.random)
        self.problem = ""

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_running(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begins to write."""
        self._thread.start()

    def add(self, ended: EndedDelivery) -> None:
        """This one was given up."""
        self._waiting.append(ended)
        self._changed.set()

    def stop(self) -> None:
        """Ends when all is written, or at the first failure; what is left comes again after a start."""
        self._stop.set()
        self._changed.set()

    def join(self, until_s: float) -> None:
        """Waits for its end, until a moment of the monotonic clock."""
        if self._thread.ident is not None:
            self._thread.join(max(until_s - time.monotonic(), 0.0))

    def _run(self) -> None:
        client: Any = None
        producer: Any = None
        while not self._stop.is_set() or self._waiting:
            if not self._waiting:
                # cleared before it is looked at again: nothing that comes in between is missed
                self._changed.clear()
                if not self._waiting and not self._stop.is_set():
                    self._changed.wait()
                continue
            try:
                client = client or self._open_client()
                producer = producer or self._producer(client)
                self._write_first(producer)
            except (pulsar.PulsarException, PulsarAccessError, ValueError, RuntimeError) as error:
                self._note_failed(f"{type(error).__name__}: {error}")
                close_quietly(client)
                client = producer = None
                # at the end what is left is given up here: its message was not acknowledged
                if self._stop.wait(self._backoff.take_delay_s()):
                    break
        close_quietly(client)

    def _producer(self, client: Any) -> Any:
        # before the first message, or nobody would keep it for the commands
        ensure_subscription(client, self.name)
        return client.create_producer(self.name, send_timeout_millis=10_000)

    def _write_first(self, producer: Any) -> None:
        ended = self._waiting[0]
        try:
            data = encode_undelivered(ended, round(self._clock() * 1000))
            # One by one: what is given up is seldom, and each is acknowledged by this receipt alone.
            producer.send(
                data,
                partition_key=ended.delivery.key,
                properties={"webhook": ended.delivery.webhook, "reason": ended.reason},
            )
        except (UndeliveredUnfit, pulsar.MessageTooBig) as error:
            # tried again it would be the same, and all others would wait behind it
            _LOG.error(
                "a message that no webhook took cannot be kept, and is dropped",
                topic=self.name,
                key=ended.delivery.key,
                webhook=ended.delivery.webhook,
                reason=ended.reason,
                problem=str(error),
            )
            self._end_first(self._on_dropped)
        else:
            self._end_first(self._on_written)

    def _end_first(self, on_ended: Callable[[EndedDelivery], object]) -> None:
        ended = self._waiting.popleft()
        self.problem = ""
        self._backoff.reset()
        on_ended(ended)

    def _note_failed(self, problem: str) -> None:
        if not self.problem:
            _LOG.warning("undelivered messages are not written, and tried again", topic=self.name, problem=problem)
        self.problem = problem


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
