"""What no webhook took, on its way into its topic: again and again until Pulsar has it."""

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
from gateway.webhooks.undelivered_message import undelivered_of
from gateway.webhooks.undelivered_queue import ensure_subscription
from runtime.backoff import Backoff
from runtime.pulsar_client import PulsarAccessError, close_quietly

__all__ = ["MAX_WAITING", "UndeliveredWriter"]

MAX_WAITING: Final = 5000
"""While more wait, nothing more is read."""
_IDLE_S: Final = 1.0
# what is not written by then was not acknowledged, and comes again
_CLOSE_S: Final = 5.0
_LOG = structlog.get_logger("webhooks")


class UndeliveredWriter:
    """`topic_of` names a tenant's topic; `on_written` hears of each message that Pulsar has, in its thread."""

    def __init__(
        self,
        open_client: Callable[[], Any],
        topic_of: Callable[[str], str],
        on_written: Callable[[EndedDelivery], object],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._open_client, self._topic_of, self._on_written, self._clock = open_client, topic_of, on_written, clock
        self._waiting: deque[EndedDelivery] = deque()
        self._changed, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="writes undelivered messages", daemon=True)
        self._backoff = Backoff(0.2, 10.0, random.random)
        self.problem = ""

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        """Whether nothing more is to be given up now."""
        return len(self) >= MAX_WAITING

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

    def close(self) -> None:
        """Writes what waits if that is quick; the rest comes again after a start."""
        self._stop.set()
        self._changed.set()
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        client: Any = None
        producers: dict[str, Any] = {}
        while not self._stop.is_set() or self._waiting:
            if not self._waiting:
                self._changed.wait(_IDLE_S)
                self._changed.clear()
                continue
            try:
                client = client or self._open_client()
                self._write_first(client, producers)
            except (pulsar.PulsarException, PulsarAccessError, ValueError, RuntimeError) as error:
                self._note_failed(f"{type(error).__name__}: {error}")
                close_quietly(client)
                client, producers = None, {}
                # at the end what is left is given up here: its message was not acknowledged
                if self._stop.wait(self._backoff.take_delay_s()):
                    break
        close_quietly(client)

    def _write_first(self, client: Any, producers: dict[str, Any]) -> None:
        ended = self._waiting[0]
        tenant = ended.delivery.tenant
        if tenant not in producers:
            # before the first message, or nobody would keep it for the commands
            ensure_subscription(client, self._topic_of(tenant))
            producers[tenant] = client.create_producer(self._topic_of(tenant), send_timeout_millis=10_000)
        message = undelivered_of(ended, round(self._clock() * 1000))
        # One by one: what is given up is seldom, and each is acknowledged by this receipt alone.
        producers[tenant].send(
            message.model_dump_json().encode(),
            partition_key=message.key,
            properties={"webhook": message.webhook, "reason": message.reason},
        )
        self._waiting.popleft()
        self.problem = ""
        self._backoff.reset()
        self._on_written(ended)

    def _note_failed(self, problem: str) -> None:
        if not self.problem:
            _LOG.warning("undelivered messages are not written, and tried again", problem=problem)
        self.problem = problem
