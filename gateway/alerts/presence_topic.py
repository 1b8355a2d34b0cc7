"""Where alert processes of a region say that they are there: a topic of the region, which is not replicated."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final

import pulsar
import structlog

from gateway.alerts.presence import Presence, PresenceMessage, decode_presence, encode_presence

__all__ = ["PresenceTopic"]

# a process that ended is missed after a few of these
SAY_S: Final = 1.0
# without presence the partitions stay as they are, which is no hurry
_RETRY_S: Final = 5.0
_MAX_READ: Final = 1000
_LOG = structlog.get_logger("alerts")


class PresenceTopic:
    """Says and hears in a thread of its own, as a topic that does not answer must not hold up who claims partitions.

    Without it nothing is missed: partitions are only shared unevenly. `say`: what we say of us; None: nothing yet.
    """

    def __init__(self, client: Any, topic: str, presence: Presence, say: Callable[[], PresenceMessage | None]) -> None:
        self._client, self._topic, self._presence, self._say = client, topic, presence, say
        self._producer: Any = None
        self._reader: Any = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hears alert processes", daemon=True)
        self.problem = ""

    @property
    def is_running(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begins to say and to hear."""
        self._thread.start()

    def stop(self) -> None:
        """Says nothing more."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            began_s = time.monotonic()
            pause_s = self.turn()
            self._stop.wait(max(began_s + pause_s - time.monotonic(), 0.0))

    def turn(self) -> float:
        """Says what we hold, and hears the others; so long after its beginning is the next one."""
        try:
            if (said := self._say()) is None:
                return SAY_S
            self._open()
            # Of this region alone: other clusters have no use for it.
            self._producer.send_async(encode_presence(said), None, disable_replication=True)
            self._hear()
        except (pulsar.PulsarException, ValueError, RuntimeError) as error:
            self._note(f"{self._topic}: {error}")
            return _RETRY_S
        self._note("")
        return SAY_S

    def _open(self) -> None:
        if self._producer is None:
            self._producer = self._client.create_producer(self._topic, max_pending_messages=100)
        if self._reader is None:
            self._reader = self._client.create_reader(self._topic, pulsar.MessageId.latest)

    def _hear(self) -> None:
        try:
            for _ in range(_MAX_READ):
                said = decode_presence(self._reader.read_next(1).data())
                if said is not None:
                    self._presence.note(said, time.monotonic())
        except pulsar.Timeout:
            return

    def _note(self, problem: str) -> None:
        if problem and not self.problem:
            _LOG.warning("other alert processes are not heard", problem=problem)
        self.problem = problem
