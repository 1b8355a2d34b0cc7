"""The thread that empties the buffer: it connects, sends what the dispatcher chooses, and hands back what is safe."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random

import structlog

from edge_agent.clock.jumps import Jump
from edge_agent.config import AgentSettings, UplinkSettings
from edge_agent.drain.dispatcher import Dispatcher
from edge_agent.errors import LinkError, StoreDamaged, StoreError
from edge_agent.store.block import Block
from edge_agent.store.buffer import Buffer
from edge_agent.store.mending import Mender
from edge_agent.uplink.backoff import Backoff
from edge_agent.uplink.protocol import Refused, Uplink, UplinkEvent
from telemetry import Ack

log = structlog.get_logger("edge_agent.drain")

LONGEST_WAIT_S = 10.0
"""A waiting connection is looked after at least this often, for its keep-alive."""
NEWS_BLOCKS = 256
"""Committed blocks that may wait for the drain; beyond it they are found on disk."""
BURST_BATCHES = 8
"""Batches that are sent before the connection is looked at again."""

MakeUplink = Callable[[UplinkSettings], Uplink]


class Drainer:
    """Runs in one thread (`run`); `committed`, `stop` and the properties are for others."""

    def __init__(
        self, settings: AgentSettings, buffer: Buffer, mender: Mender, make_uplink: MakeUplink, random: Random
    ) -> None:
        self._settings = settings
        self._buffer = buffer
        self._make_uplink = make_uplink
        self._backoff = Backoff(settings.uplinks[0].backoff_first_s, settings.uplinks[0].backoff_most_s, random)
        urgent = [index for index, one in enumerate(settings.classes) if one.urgent]
        self.dispatcher = Dispatcher(settings.drain, buffer, range(len(settings.classes)), urgent)
        self._news: deque[Block] = deque(maxlen=NEWS_BLOCKS)
        self._missed = False
        self._news_lock = threading.Lock()
        self._jumps: deque[tuple[Jump, int]] = deque()
        self._mender = mender
        self._alarm = threading.Event()
        self._generation = buffer.generation
        self._stopping = False
        self._uplink: Uplink | None = None
        self._settle_at_s: float | None = None
        self._pause_until_s = 0.0
        self._at = 0
        self._failing_since_s: float | None = None
        self.connected_region: str | None = None

    def committed(self, blocks: Sequence[Block]) -> None:
        """Tells the drain of new blocks."""
        with self._news_lock:
            self._missed = self._missed or len(self._news) + len(blocks) > NEWS_BLOCKS
            self._news.extend(blocks)
        self._wake()

    def jumped(self, jump: Jump) -> None:
        """Tells the drain that the clock jumped: what is stored by now and was never sent is mended first."""
        with self._news_lock:
            self._jumps.append((jump, self._buffer.last_id()))
        self._wake()

    def stop(self) -> None:
        """Ends the thread soon; nothing is lost by it."""
        self._stopping = True
        self._wake()

    def run(self) -> None:
        """Until `stop`: connect, drain, and after every failure wait and try again."""
        while not self._stopping:
            try:
                self._drain_one_connection()
            except StoreDamaged as error:
                self._disconnect(error)
                self._heal()
                self._wait(self._backoff.failed())
            except (LinkError, StoreError) as error:
                self._disconnect(error)
                self._wait(self._backoff.failed())
        self._close_uplink()

    def _drain_one_connection(self) -> None:
        settings = self._settings.uplinks[self._at]
        uplink = self._make_uplink(settings)
        try:
            uplink.open()
        except BaseException:
            uplink.close()
            raise
        self._mender.connected()
        self._uplink = uplink
        self.connected_region = uplink.region
        self._failing_since_s = None
        log.info("uplink connected", region=uplink.region)
        while not self._stopping:
            self._step(uplink)

    def _step(self, uplink: Uplink) -> None:
        self._take_news()
        if self._generation != self._buffer.generation:
            self._generation = self._buffer.generation
            self.dispatcher.rewind()
        self._mend()
        now_s = time.monotonic()
        busy = self._send(uplink, now_s)
        timeout_s = 0.0 if busy else self._longest_wait(now_s)
        if self._alarm.is_set():
            self._alarm.clear()
            timeout_s = 0.0
        for event in uplink.poll(timeout_s):
            self._handle(event)
        self._look_after(time.monotonic())

    def _send(self, uplink: Uplink, now_s: float) -> bool:
        """Sends up to a burst; whether there is more to send."""
        if now_s < self._pause_until_s:
            return False
        for _ in range(BURST_BATCHES):
            batch = self.dispatcher.next_batch(now_s)
            if batch is None:
                return False
            uplink.send(batch)
        return True

    def _handle(self, event: UplinkEvent) -> None:
        if isinstance(event, Ack):
            if self.dispatcher.acknowledged(event.epoch, event.ranges):
                self._backoff.succeeded()
            if event.pause_s > 0:
                self._pause_until_s = time.monotonic() + event.pause_s
            if self._settle_at_s is None:
                self._settle_at_s = time.monotonic() + self._settings.buffer.settle_delay_s
        elif isinstance(event, Refused):
            log.error("the gateway refused a batch", reason=event.reason)
            self._buffer.tally("refused", 1)

    def _look_after(self, now_s: float) -> None:
        late = self.dispatcher.retry_overdue(now_s)
        if late:
            log.warning("acknowledgements stay away, sending again", batches=late)
        if self._settle_at_s is not None and now_s >= self._settle_at_s:
            self._settle_at_s = None
            self._buffer.settle()

    def _longest_wait(self, now_s: float) -> float:
        waits = [LONGEST_WAIT_S, self.dispatcher.next_event_in(now_s)]
        if self._settle_at_s is not None:
            waits.append(self._settle_at_s - now_s)
        if self._pause_until_s > now_s:
            waits.append(self._pause_until_s - now_s)
        return max(0.0, min(wait for wait in waits if wait is not None))

    def _take_news(self) -> None:
        with self._news_lock:
            news, missed = list(self._news), self._missed
            self._news.clear()
            self._missed = False
        if missed:
            self.dispatcher.missed()
        if news:
            self.dispatcher.committed(time.monotonic(), news)

    def _mend(self) -> None:
        while self._jumps:
            mended = self._mender.mend(*self._jumps[0], self.dispatcher.maybe_sent)
            self._jumps.popleft()
            self.dispatcher.reload()
            log.info("mended times", batches=mended)

    def _disconnect(self, error: Exception) -> None:
        now_s = time.monotonic()
        self._close_uplink()
        self.dispatcher.disconnected()
        if self._failing_since_s is None:
            self._failing_since_s = now_s
        log.warning("uplink lost", region=self._settings.uplinks[self._at].region, error=str(error))
        if now_s - self._failing_since_s >= self._settings.failover.after_s:
            self._at = (self._at + 1) % len(self._settings.uplinks)
            self._failing_since_s = now_s

    def _heal(self) -> None:
        try:
            self._buffer.heal(self._generation)
        except StoreError as error:
            log.error("the buffer cannot be rebuilt", reason=error.reason, error=str(error))

    def _close_uplink(self) -> None:
        uplink, self._uplink = self._uplink, None
        self.connected_region = None
        if uplink is not None:
            uplink.close()

    def _wait(self, wait_s: float) -> None:
        """Waits without a connection; news are taken in the meantime, so that they do not pile up."""
        until_s = time.monotonic() + wait_s
        while not self._stopping and (remaining_s := until_s - time.monotonic()) > 0:
            self._alarm.wait(remaining_s)
            self._alarm.clear()
            self._take_news()

    def _wake(self) -> None:
        self._alarm.set()
        uplink = self._uplink
        if uplink is not None:
            with suppress(OSError):
                uplink.wake()
