"""The thread that empties the buffer: it connects, sends what the dispatcher chooses, and reports acknowledgements."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random

import structlog

from edge_agent.clocks import ClockJump, HeadStatement
from edge_agent.config import MAX_CLASSES, AgentSettings
from edge_agent.drain.dispatcher import Dispatcher, Statements
from edge_agent.drain.link_budget import LinkBudget
from edge_agent.drain.region import MakeUplink, RegionChoice, UplinkHealth
from edge_agent.errors import AgentError, LinkError, StoreDamaged, StoreError
from edge_agent.store.batch_rows import StoredBatch
from edge_agent.store.buffer import Buffer
from edge_agent.store.clock_correction import ClockCorrector
from edge_agent.uplink.protocol import (
    CertificateAnswer,
    HeartbeatAnswered,
    MalformedControl,
    NoGateway,
    OutgoingBatch,
    PushedSettings,
    RefusedBatch,
    Uplink,
    UplinkEvent,
)
from waybill.record import Ack, IntervalSet, RefusalReason

# Messages of other threads to the drain's thread.

MAX_NEW_BATCHES = 256
"""Committed batches that may wait for the drain; further ones are found on disk."""
MAX_REPORTS = 8


class DrainInbox:
    """Messages to the drain's thread; any thread may add one and wakes the drain. `last_id`: the highest batch id
    now.
    """

    def __init__(self, last_id: Callable[[], int]) -> None:
        self._last_id = last_id
        self._lock = threading.Lock()
        self._batches: deque[StoredBatch] = deque(maxlen=MAX_NEW_BATCHES)
        self._missed = False
        self._wakeup = threading.Event()
        self._wake_uplink: Callable[[], None] | None = None
        self.jumps: deque[tuple[ClockJump, int]] = deque()
        """Clock jumps, each with the last batch id before it."""
        self.reports: deque[bytes] = deque(maxlen=MAX_REPORTS)
        self.certificate_requests: deque[bytes] = deque(maxlen=1)
        """Only the last one: an earlier one was given up."""
        self.connects_now = False
        """Whether the wait before the next attempt to connect ends."""
        self.is_stopping = False
        self.statement: HeadStatement | None = None
        """The intake's head statement, if any."""

    def on_statement(self, statement: HeadStatement | None) -> None:
        """Sets the statement for the next batches; the drain need not wake up for it."""
        self.statement = statement

    def on_committed(self, batches: Sequence[StoredBatch]) -> None:
        with self._lock:
            self._missed = self._missed or len(self._batches) + len(batches) > MAX_NEW_BATCHES
            self._batches.extend(batches)
        self._wake()

    def on_missed(self) -> None:
        """There are batches on disk that `on_committed` did not report."""
        self._missed = True
        self._wake()

    def on_jump(self, jump: ClockJump) -> None:
        with self._lock:
            # The bound is fixed here: records stored later are already corrected.
            self.jumps.append((jump, self._last_id()))
        self._wake()

    def report(self, text: bytes) -> None:
        """Publishes the outcome of pushed settings as soon as there is a connection."""
        self.reports.append(text)
        self._wake()

    def ask_certificate(self, request: bytes) -> None:
        self.certificate_requests.append(request)
        self._wake()

    def connect_now(self) -> None:
        """Ends the wait before the next connection attempt: the reason of the last failure may be gone."""
        self.connects_now = True
        self._wake()

    def stop(self) -> None:
        self.is_stopping = True
        self._wake()

    def take_batches(self) -> tuple[list[StoredBatch], bool]:
        """The new batches, and whether others were missed."""
        with self._lock:
            batches, missed = list(self._batches), self._missed
            self._batches.clear()
            self._missed = False
        return batches, missed

    def set_uplink(self, wake: Callable[[], None] | None) -> None:
        """Sets how to wake the drain: `wake` while it waits in an uplink, None while it waits in `wait`."""
        self._wake_uplink = wake

    def take_wakeup(self) -> bool:
        """Whether something was added since the last call."""
        if not self._wakeup.is_set():
            return False
        self._wakeup.clear()
        return True

    def wait(self, wait: Callable[[threading.Event, float], object], timeout_s: float) -> None:
        wait(self._wakeup, timeout_s)
        self._wakeup.clear()

    def _wake(self) -> None:
        # First: a drain between two polls checks `take_wakeup`.
        self._wakeup.set()
        wake = self._wake_uplink
        if wake is not None:
            # The drain may be closing this connection; then it checks `_wakeup` next.
            with suppress(OSError):
                wake()


log = structlog.get_logger("edge_agent.drain")

MAX_REASON_CHARACTERS = 200
MAX_WAIT_S = 10.0
"""The longest wait in a connection, for its keep-alive."""
BURST_BATCHES = 8
"""Batches that are sent before the connection is polled again."""
SLOW_DOWN_S = 1.0
"""The shortest wait after a `slow-down`, also for urgent batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainParts:
    """The collaborators of the drain.

    `on_push` receives settings from the gateway, `on_certificate_answer` the region's answer to a certificate request.
    `wait` waits for an event, at most so many seconds.
    """

    buffer: Buffer
    clock_corrector: ClockCorrector
    link_budget: LinkBudget
    make_uplink: MakeUplink
    random: Random
    on_push: Callable[[bytes], None] = lambda _text: None
    on_certificate_answer: Callable[[bytes], None] = lambda _payload: None
    monotonic_s: Callable[[], float] = time.monotonic
    wait: Callable[[threading.Event, float], object] = threading.Event.wait


class Drainer:
    """Runs in one thread (`run`). Other threads use `inbox` and read the properties, `health` and `regions`."""

    def __init__(self, settings: AgentSettings, parts: DrainParts) -> None:
        self._parts = parts
        self._buffer = parts.buffer
        self._prune_delay_s = settings.buffer.prune_delay_s
        self._now_s = parts.monotonic_s
        self._urgent = frozenset(index for index, one in enumerate(settings.classes) if one.urgent)
        # Batches of classes that left the settings are still stored, after all others.
        device, drain = settings.device.id, settings.drain
        self.statements = Statements(device, drain.heartbeat_s, drain.ack_timeout_s, self._now_s())
        self.dispatcher = Dispatcher(drain, parts.buffer, range(MAX_CLASSES), self.statements)
        self.inbox = DrainInbox(parts.buffer.last_id)
        self.health = UplinkHealth(settings.drain.ack_timeout_s, settings.drain.max_pause_s)
        self.regions = RegionChoice(settings, parts.make_uplink, parts.random)
        self._generation = parts.buffer.generation
        self._uplink: Uplink | None = None
        self._prune_at_s: float | None = None
        self._has_nothing_to_send = False
        self.control_unreadable = 0
        """Messages of the gateway that could not be read or handled."""
        self.heartbeat_s = self._now_s()
        """When the thread was last seen alive, by the monotonic clock."""

    @property
    def paused_for_s(self) -> float:
        """The remaining pause that the gateway asked for."""
        return self.health.pause.left_s(self._now_s())

    def run(self) -> None:
        """Connects and drains until the inbox says stop; waits and retries after each failure."""
        while not self.inbox.is_stopping:
            try:
                self._drain_one_connection()
            except StoreDamaged as error:
                self._disconnect(error)
                self._repair_buffer()
                self._wait(self.regions.take_delay_s())
            except (LinkError, StoreError) as error:
                self._disconnect(error)
                self._wait(self.regions.take_delay_s())
        self._close_uplink()

    def _drain_one_connection(self) -> None:
        uplink = self.regions.make_uplink()
        try:
            uplink.open()
            # Before anything is sent: records that may have been sent keep their times.
            self._parts.clock_corrector.mark_sending()
        except BaseException:
            uplink.close()
            raise
        self._uplink = uplink
        self.inbox.set_uplink(uplink.wake)
        self.health.on_connected(uplink.region)
        self.dispatcher.on_connected(uplink.region)
        self._parts.link_budget.on_connected()
        self.regions.on_connected(self._now_s())
        log.info("uplink connected", region=uplink.region)
        while not self.inbox.is_stopping and not self.regions.take_leave():
            self._run_once(uplink)
        self._close_uplink()
        self.dispatcher.on_disconnected()
        self.statements.end_heartbeat()

    def _run_once(self, uplink: Uplink) -> None:
        self._take_new_batches()
        self._follow_buffer()
        now_s = self.heartbeat_s = self._now_s()
        while self.inbox.reports:
            uplink.report(self.inbox.reports.popleft())
        while self.inbox.certificate_requests:
            uplink.ask_certificate(self.inbox.certificate_requests.popleft())
        self.statements.current = self.inbox.statement
        busy = self._send(uplink, now_s)
        self._send_heartbeat(uplink, now_s)
        timeout_s = 0.0 if busy else self._wait_at_most_s(now_s)
        # News since the start of this round must not wait for the timeout.
        if self.inbox.take_wakeup():
            timeout_s = 0.0
        for event in uplink.poll(timeout_s):
            self._handle_safely(event)
        self._maintain(uplink, self._now_s())

    def _send(self, uplink: Uplink, now_s: float) -> bool:
        """Sends at most one burst; returns whether there is more to send."""
        budget, health = self._parts.link_budget, self.health
        self._has_nothing_to_send = False
        if now_s < health.resume_at_s:
            return False
        if health.gateway_absent and self.dispatcher.in_flight:
            return False
        is_paused = health.pause.left_s(now_s) > 0
        budget.update_link(now_s)
        allowed = budget.allowed_classes()
        # While no gateway is subscribed, one batch at a time tests for it.
        for _ in range(1 if health.gateway_absent else BURST_BATCHES):
            if budget.wait_s(now_s) > 0:
                return False
            batch = self.dispatcher.take_next(now_s, allowed & self._urgent if is_paused else allowed)
            if batch is None:
                self._has_nothing_to_send = not is_paused
                return False
            uplink.send(batch)
            budget.charge_estimate(now_s, len(batch.data))
            health.on_sent(now_s)
        return not health.gateway_absent

    def _send_heartbeat(self, uplink: Uplink, now_s: float) -> None:
        """Sends a heartbeat if one is due and the data plan allows it."""
        health, budget = self.health, self._parts.link_budget
        if self.statements.due_in(now_s) != 0:
            return
        is_held = health.gateway_absent or now_s < health.resume_at_s or health.pause.left_s(now_s) > 0
        if is_held or budget.wait_s(now_s) > 0 or not budget.allowed_classes() or not self.dispatcher.has_room:
            return
        epoch, data = self.statements.take_heartbeat(now_s)
        uplink.send(OutgoingBatch(epoch, IntervalSet(), data))
        budget.charge_estimate(now_s, len(data))

    def _handle_safely(self, event: UplinkEvent) -> None:
        """No message of the gateway ends the thread."""
        try:
            self._handle(event)
        except AgentError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not come back with the next delivery
            self._on_unreadable(type(event).__name__, repr(error))

    def _handle(self, event: UplinkEvent) -> None:
        match event:
            case Ack():
                self._on_acked(event)
            case RefusedBatch():
                self._on_refused(event)
            case PushedSettings(text):
                self._parts.on_push(text)
            case CertificateAnswer(payload):
                self._parts.on_certificate_answer(payload)
            case HeartbeatAnswered():
                self.statements.end_heartbeat()
            case NoGateway():
                self._on_no_gateway()
            case MalformedControl(source, reason):
                self._on_unreadable(source, reason)

    def _on_unreadable(self, source: str, reason: str) -> None:
        self.control_unreadable += 1
        log.error("a message of the gateway is ignored", source=source, reason=reason[:MAX_REASON_CHARACTERS])

    def _on_acked(self, event: Ack) -> None:
        now_s = self._now_s()
        # First: an acknowledgement may have a pause and no record ids.
        self.health.pause.request(now_s, event.pause_s)
        if self.dispatcher.on_acked(event.epoch, event.seqs) == 0:
            return
        self.health.on_acked(now_s, more_in_flight=self.dispatcher.in_flight > 0)
        self.regions.on_acked()
        # Pruning waits for the next commit, which includes it: each sync wears the flash.
        if self._prune_at_s is None:
            self._prune_at_s = now_s + self._prune_delay_s

    def _on_slow_down(self, event: RefusedBatch) -> None:
        """Sends the batches again after a wait, which also holds for urgent ones: otherwise they would go at once."""
        now_s = self._now_s()
        if self.dispatcher.on_slow_down(event.epoch, event.seqs) == 0:
            return
        self._has_nothing_to_send = False
        self.health.resume_at_s = max(self.health.resume_at_s, now_s + SLOW_DOWN_S)
        # The region answered, so it is not silent.
        self.health.on_refused(now_s, more_in_flight=self.dispatcher.in_flight > 0, region_refuses_all=False)

    def _on_refused(self, event: RefusedBatch) -> None:
        if event.reason == RefusalReason.SLOW_DOWN:
            self._on_slow_down(event)
            return
        now_s, in_flight = self._now_s(), self.dispatcher.in_flight
        dead_lettered = self.dispatcher.on_refused(now_s, event.epoch, event.seqs, event.reason)
        # A late answer, or one about a batch that was never sent.
        if self.dispatcher.in_flight == in_flight:
            return
        log.error("the region refused a batch", reason=event.reason, records=event.seqs.count)
        self._buffer.counters.add("refused", 1)
        if dead_lettered:
            log.error("dead letter", reason=event.reason, batches=dead_lettered)
        self.health.on_refused(
            now_s,
            more_in_flight=self.dispatcher.in_flight > 0,
            region_refuses_all=self.dispatcher.region_refuses_all,
        )

    def _on_no_gateway(self) -> None:
        """Sends everything in flight again, one batch first, after a wait that doubles up to `backoff_max_s`."""
        now_s = self._now_s()
        self.health.on_no_gateway()
        self._has_nothing_to_send = False
        self.dispatcher.on_disconnected()
        # One wait for each burst: every batch of it is answered, and each answer would double the wait.
        if now_s >= self.health.resume_at_s:
            self.health.resume_at_s = now_s + self.regions.take_delay_s()

    def _maintain(self, uplink: Uplink, now_s: float) -> None:
        self._parts.link_budget.charge_counted(now_s, *uplink.wire_bytes())
        is_idle = self._has_nothing_to_send and self.dispatcher.in_flight == 0
        since_s = self.health.update(now_s, is_idle=is_idle and not self.dispatcher.region_refuses_all)
        self.regions.update(now_s, since_s, uplink.region, is_acked=self.health.is_taking)
        self.dispatcher.retry_overdue(now_s)
        if self._prune_at_s is not None and now_s >= self._prune_at_s:
            self._prune_at_s = None
            self._buffer.prune_acknowledged()
        self.regions.probe_preferred(now_s)

    def _wait_at_most_s(self, now_s: float) -> float:
        waits = [
            MAX_WAIT_S,
            self.dispatcher.next_event_in(now_s),
            self._parts.link_budget.wait_s(now_s) or None,
            self.regions.check_in_s(),
            # A held heartbeat waits for what holds it.
            self.statements.due_in(now_s) or None,
        ]
        health = self.health
        times_s = (self._prune_at_s, health.pause.until_s, health.resume_at_s)
        waits.extend(time_s - now_s for time_s in times_s if time_s and time_s > now_s)
        return max(0.0, min(wait for wait in waits if wait is not None))

    def _take_new_batches(self) -> None:
        batches, missed = self.inbox.take_batches()
        if missed:
            self.dispatcher.on_missed()
        if batches:
            self.dispatcher.on_committed(self._now_s(), batches)

    def _follow_buffer(self) -> None:
        """Handles a rebuilt buffer and clock jumps before anything else is sent."""
        if self._generation != self._buffer.generation:
            self._generation = self._buffer.generation
            self.dispatcher.rewind()
        while self.inbox.jumps:
            corrected = self._parts.clock_corrector.correct(*self.inbox.jumps[0], self.dispatcher.maybe_sent)
            # Only now: a failed correction is repeated.
            self.inbox.jumps.popleft()
            self.dispatcher.reload()
            log.info("corrected times", batches=corrected)

    def _disconnect(self, error: Exception) -> None:
        connected = self.health.connected_region
        self._close_uplink()
        self.dispatcher.on_disconnected()
        self.statements.end_heartbeat()
        self.regions.on_failure(self._now_s(), error, connected)

    def _repair_buffer(self) -> None:
        try:
            self._buffer.repair(self._generation)
        except StoreError as error:
            log.error("the buffer cannot be rebuilt", reason=error.reason, error=str(error))

    def _close_uplink(self) -> None:
        uplink, self._uplink = self._uplink, None
        # Before closing: until here other threads may wake the connection.
        self.inbox.set_uplink(None)
        self.health.on_closed()
        if uplink is not None:
            uplink.close()

    def _wait(self, wait_s: float) -> None:
        """Waits without a connection, and takes new batches meanwhile so that they do not pile up."""
        until_s = self._now_s() + wait_s
        while not self.inbox.is_stopping and (remaining_s := until_s - self._now_s()) > 0:
            self.inbox.wait(self._parts.wait, remaining_s)
            self._take_new_batches()
            self.heartbeat_s = self._now_s()
            if self.inbox.connects_now:
                self.inbox.connects_now = False
                return
