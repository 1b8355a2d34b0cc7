"""Alerts on their way to Pulsar: a bounded number at once, each again until there is a receipt."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import pulsar
import structlog

from gateway.alerts.ack_order import TakenMessages
from geo.alerts import Alert, encode_alert
from waybill.daemon.backoff import Backoff
from waybill.pulsar.pulsar_client import close_quietly

__all__ = ["MAX_IN_FLIGHT", "MAX_WAITING", "AlertSender", "Sent"]

MAX_IN_FLIGHT: Final = 1000
"""So many alerts of a partition are with the client at once."""
MAX_WAITING: Final = 20_000
"""While more wait, no more batches are read."""
BATCHING_DELAY_MS: Final = 2
_LOG = structlog.get_logger("alerts")


class Sent(NamedTuple):
    """An alert, the messages that it follows from, and whether Pulsar has it."""

    alert: Alert
    taken: TakenMessages[Any]
    result: str = ""


class AlertSender:
    """The alerts of one partition. `open_producer` opens a producer of their topic.

    One thread adds and pumps; results come in threads of the client, and `came` is set when one did.
    """

    def __init__(
        self,
        open_producer: Callable[[], Any],
        backoff: Backoff,
        on_failed: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open, self._backoff, self._on_failed, self._clock = open_producer, backoff, on_failed, clock
        self._waiting: deque[Sent] = deque()
        self._results: deque[Sent] = deque()
        self._in_flight = 0
        self._producer: Any = None
        self._resumes_s = 0.0
        self.came = threading.Event()
        self.problem = ""

    def __len__(self) -> int:
        return len(self._waiting) + self._in_flight

    @property
    def is_full(self) -> bool:
        """Whether nothing more is to be added now."""
        return len(self) >= MAX_WAITING

    def add(self, alerts: Iterable[Alert], taken: TakenMessages[Any]) -> None:
        """These alerts are to be published."""
        self._waiting.extend(Sent(alert, taken) for alert in alerts)

    def pump(self) -> list[Sent]:
        """Sends what there is room for; gives those that Pulsar has by now. What failed is sent again, later."""
        persisted = [one for one in self._take_results() if self._is_persisted(one)]
        if self._waiting and self._clock() >= self._resumes_s:
            try:
                self._send()
            except (pulsar.PulsarException, ValueError, RuntimeError) as error:
                self._note_failed(f"{type(error).__name__}: {error}")
        return persisted

    def close(self) -> None:
        """Gives the producer back; what has no receipt is published by whoever reads the batches next."""
        if self._producer is not None:
            producer, self._producer = self._producer, None
            _close_in_background(producer)

    def _send(self) -> None:
        if self._producer is None:
            self._producer = self._open()
        while self._waiting and self._in_flight < MAX_IN_FLIGHT:
            one = self._waiting.popleft()
            alert = one.alert
            self._in_flight += 1
            try:
                self._producer.send_async(
                    encode_alert(alert),
                    lambda result, _, one=one: self._on_result(one, result),
                    partition_key=alert.device,
                    properties={"tenant": alert.tenant, "region": alert.region, "id": alert.id},
                )
            except BaseException:
                self._in_flight -= 1
                self._waiting.appendleft(one)
                raise

    def _on_result(self, one: Sent, result: Any) -> None:
        # In a thread of the client, and in this order: who is woken finds it.
        self._results.append(one._replace(result="" if result == pulsar.Result.Ok else str(result)))
        self.came.set()

    def _take_results(self) -> list[Sent]:
        self.came.clear()
        found = []
        while self._results:
            found.append(self._results.popleft())
        self._in_flight -= len(found)
        return found

    def _is_persisted(self, one: Sent) -> bool:
        if one.result:
            # first again: its batch holds up the acknowledgement of all that came after it
            self._waiting.appendleft(one._replace(result=""))
            self._note_failed(one.result)
            return False
        self.problem = ""
        self._backoff.reset()
        return True

    def _note_failed(self, problem: str) -> None:
        self._on_failed()
        if not self.problem:
            _LOG.warning("alerts are not published, and sent again", problem=problem)
        self.problem = problem
        if self._clock() >= self._resumes_s:
            self._resumes_s = self._clock() + self._backoff.take_delay_s()
            # What it is good for nobody says: a new one is.
            self.close()


def _close_in_background(producer: Any) -> None:
    # Closing waits for the cluster, which may be why it is closed.
    threading.Thread(target=close_quietly, args=(producer,), name="closes a producer", daemon=True).start()
