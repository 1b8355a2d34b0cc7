"""Where alert processes of a region say that they are there: a topic of the region, which is not replicated."""

from __future__ import annotations

import time
from typing import Any, Final

import pulsar
import structlog

from gateway.alerts.presence import Presence, decode_presence, encode_presence

__all__ = ["PresenceTopic"]

# a process that ended is missed after a few of these
SAY_S: Final = 1.0
# without presence the partitions stay as they are, which is no hurry
_RETRY_S: Final = 5.0
_MAX_READ: Final = 1000
_LOG = structlog.get_logger("alerts")


class PresenceTopic:
    """Says and hears, in the thread that asks. Without it nothing is missed: partitions are only shared unevenly."""

    def __init__(self, client: Any, topic: str, presence: Presence) -> None:
        self._client, self._topic, self._presence = client, topic, presence
        self._producer: Any = None
        self._reader: Any = None
        self._next_s = 0.0
        self.problem = ""

    def turn(self, held: int) -> None:
        """Says how many partitions we hold, once a second, and hears the others."""
        if (now_s := time.monotonic()) < self._next_s:
            return
        self._next_s = now_s + SAY_S
        try:
            self._open()
            # Of this region alone: other clusters have no use for it.
            self._producer.send_async(encode_presence(self._presence.instance, held), None, disable_replication=True)
            self._hear()
        except (pulsar.PulsarException, ValueError, RuntimeError) as error:
            self._next_s = now_s + _RETRY_S
            self._note(f"{self._topic}: {error}")
        else:
            self._note("")

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
                    self._presence.note(*said, time.monotonic())
        except pulsar.Timeout:
            return

    def _note(self, problem: str) -> None:
        if problem and not self.problem:
            _LOG.warning("other alert processes are not heard", problem=problem)
        self.problem = problem
