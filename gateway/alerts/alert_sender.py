"""Sends alerts to Pulsar: a bounded number at once, each again until there is a receipt."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

import pulsar
import structlog

from geo.alerts import Alert, encode_alert
from waybill.daemon.backoff import Backoff
from waybill.pulsar.pulsar_client import close_quietly

# When to acknowledge a partition's messages: after the receipts of all their outputs. Pure.

Position = TypeVar("Position")


@dataclass(slots=True, eq=False)
class TakenMessages(Generic[Position]):
    """Messages up to a position, and how many of their alerts have no receipt yet."""

    position: Position
    unreceipted: int


class AckOrder(Generic[Position]):
    """Messages that were evaluated and are not acknowledged, in order of arrival."""

    def __init__(self) -> None:
        self._taken: deque[TakenMessages[Position]] = deque()
        self.unreceipted = 0

    def __len__(self) -> int:
        return len(self._taken)

    def take(self, position: Position, alerts: int) -> TakenMessages[Position]:
        """Add messages up to a position, with the number of their alerts."""
        assert alerts >= 0
        one = TakenMessages(position, alerts)
        self._taken.append(one)
        self.unreceipted += alerts
        return one

    def on_receipt(self, one: TakenMessages[Position]) -> None:
        assert one.unreceipted > 0, "an alert has two receipts"
        one.unreceipted -= 1
        self.unreceipted -= 1

    def pop_done(self) -> Position | None:
        """The newest position before which everything has its receipt, if it has moved."""
        position: Position | None = None
        # from the front, as an acknowledgement includes everything before it
        while self._taken and not self._taken[0].unreceipted:
            position = self._taken.popleft().position
        return position


MAX_IN_FLIGHT: Final = 1000
"""Alerts of a partition that are with the client at once."""
MAX_WAITING: Final = 20_000
"""While more alerts wait, no batches are read."""
BATCHING_DELAY_MS: Final = 2
_LOG = structlog.get_logger("alerts")


class SentAlert(NamedTuple):
    """An alert, its messages, and the result of sending it ("": not known, or Pulsar has it)."""

    alert: Alert
    taken: TakenMessages[Any]
    result: str = ""


class AlertSender:
    """The alerts of one partition. `open_producer` opens a producer of their topic.

    One thread adds and pumps. Results come in threads of the client, which set `came`.
    """

    def __init__(
        self,
        open_producer: Callable[[], Any],
        backoff: Backoff,
        on_failed: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open, self._backoff, self._on_failed, self._clock = open_producer, backoff, on_failed, clock
        self._waiting: deque[SentAlert] = deque()
        self._results: deque[SentAlert] = deque()
        self._in_flight = 0
        self._producer: Any = None
        self._resumes_s = 0.0
        self.came = threading.Event()
        self.problem = ""

    def __len__(self) -> int:
        return len(self._waiting) + self._in_flight

    @property
    def is_full(self) -> bool:
        return len(self) >= MAX_WAITING

    def add(self, alerts: Iterable[Alert], taken: TakenMessages[Any]) -> None:
        self._waiting.extend(SentAlert(alert, taken) for alert in alerts)

    def pump(self) -> list[SentAlert]:
        """Send what there is room for, and what failed before. Return the alerts that Pulsar has by now."""
        persisted = [one for one in self._take_results() if self._is_persisted(one)]
        if self._waiting and self._clock() >= self._resumes_s:
            try:
                self._send()
            except (pulsar.PulsarException, ValueError, RuntimeError) as error:
                self._note_failed(f"{type(error).__name__}: {error}")
        return persisted

    def close(self) -> None:
        """Close the producer. The next owner of the partition publishes alerts without a receipt again."""
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

    def _on_result(self, one: SentAlert, result: Any) -> None:
        # in a thread of the client; the result first, then the event
        self._results.append(one._replace(result="" if result == pulsar.Result.Ok else str(result)))
        self.came.set()

    def _take_results(self) -> list[SentAlert]:
        self.came.clear()
        found = []
        while self._results:
            found.append(self._results.popleft())
        self._in_flight -= len(found)
        return found

    def _is_persisted(self, one: SentAlert) -> bool:
        if one.result:
            # first again, as it holds up the acknowledgement of all later batches
            self._waiting.appendleft(one._replace(result=""))
            self._note_failed(one.result)
            return False
        self.problem = ""
        self._backoff.reset()
        return True

    def _note_failed(self, problem: str) -> None:
        self._on_failed()
        if not self.problem:
            _LOG.warning("alerts could not be published and are sent again", problem=problem)
        self.problem = problem
        if self._clock() >= self._resumes_s:
            self._resumes_s = self._clock() + self._backoff.take_delay_s()
            # open a new producer
            self.close()


def _close_in_background(producer: Any) -> None:
    # closing may wait for the cluster
    threading.Thread(target=close_quietly, args=(producer,), name="closes a producer", daemon=True).start()
