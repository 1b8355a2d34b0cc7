"""The thread that empties the buffer: it connects, sends what the dispatcher chooses, and hands back what is safe."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random

import structlog

from edge_agent.clock.jumps import ClockJump
from edge_agent.config import MAX_CLASSES, AgentSettings, UplinkSettings
from edge_agent.control_dead_letters import ControlDeadLetters
from edge_agent.drain.ack_wait import AckWait, Pause
from edge_agent.drain.dispatcher import Dispatcher
from edge_agent.drain.link_budget import LinkBudget
from edge_agent.errors import AgentError, LinkClosed, LinkError, StoreDamaged, StoreError
from edge_agent.store.buffer import Buffer
from edge_agent.store.clock_correction import ClockCorrector
from edge_agent.store.stored_batch import StoredBatch
from edge_agent.uplink.probe import Probe
from edge_agent.uplink.protocol import NoGateway, PushedSettings, RefusedBatch, Uplink, UplinkEvent
from edge_agent.uplink.regions import Regions
from runtime.backoff import Backoff
from runtime.takeovers import Takeovers
from telemetry import Ack

log = structlog.get_logger("edge_agent.drain")

MAX_WAIT_S = 10.0
"""A waiting connection is looked after at least this often, for its keep-alive."""
MAX_NEW_BATCHES = 256
"""Committed batches that may wait for the drain; beyond it they are found on disk."""
BURST_BATCHES = 8
"""Batches that are sent before the connection is looked at again."""
LEAVE_WITHIN_S = 5.0
"""How long acknowledgements are waited for before going back to the preferred region."""
MAX_REPORTS = 8

MakeUplink = Callable[[UplinkSettings], Uplink]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainParts:
    """What the drain works with.

    `on_push` gets settings from the gateway. `monotonic_s` is the time, `wait` waits for an event or for seconds.
    """

    buffer: Buffer
    clock_corrector: ClockCorrector
    link_budget: LinkBudget
    make_uplink: MakeUplink
    random: Random
    dead_letters: ControlDeadLetters
    on_push: Callable[[bytes], None] = lambda _text: None
    monotonic_s: Callable[[], float] = time.monotonic
    wait: Callable[[threading.Event, float], object] = threading.Event.wait


class Drainer:
    """Runs in one thread (`run`); the methods that say so, and the properties, are for others."""

    def __init__(self, settings: AgentSettings, parts: DrainParts) -> None:
        self._settings = settings
        self._parts = parts
        self._buffer = parts.buffer
        first = settings.uplinks[0]
        self._backoff = Backoff(first.backoff_first_s, first.backoff_max_s, parts.random.random)
        cause = f"another agent has the id {settings.device.id!r}: each needs an id of its own"
        self.takeovers = Takeovers(cause, 2 * first.backoff_max_s)
        self._regions = Regions(len(settings.uplinks), settings.failover, parts.random)
        self._now_s = parts.monotonic_s
        self._urgent = frozenset(index for index, one in enumerate(settings.classes) if one.urgent)
        # Batches of classes that were taken out of the settings are still there, after all others.
        self.dispatcher = Dispatcher(settings.drain, parts.buffer, range(MAX_CLASSES), self._urgent)
        self._new_batches: deque[StoredBatch] = deque(maxlen=MAX_NEW_BATCHES)
        self._missed = False
        self._jumps: deque[tuple[ClockJump, int]] = deque()
        self._reports: deque[bytes] = deque(maxlen=MAX_REPORTS)
        self._lock = threading.Lock()
        self._wakeup = threading.Event()
        self._generation = parts.buffer.generation
        self._stopping = False
        self._uplink: Uplink | None = None
        self._probe: Probe | None = None
        self._leave_by_s: float | None = None
        self._prune_at_s: float | None = None
        self._pause = Pause(settings.drain.max_pause_s)
        self._ack_wait = AckWait()
        self._ack_wait_region = ""
        self._has_nothing_to_send = False
        self.heartbeat_s = self._now_s()
        """When the thread was last seen alive, by the monotonic clock."""
        self.connected_region: str | None = None
        self.is_healthy = False
        """Whether nothing is wrong with the uplink: connected, and nothing waits too long for its acknowledgement."""
        self.records_acked = 0
        """Record ids that were acknowledged since the agent started, each after it was sent."""
        self.region_acked: str | None = None
        """The region of the last acknowledgement; None while the present connection has brought none."""
        self.gateway_absent = False
        """Whether the region's broker said that no gateway is subscribed, and nothing was acknowledged since."""
        self._resume_at_s = 0.0
        self.acks_ignored = 0
        """Acknowledgements of nothing that was sent."""

    def on_committed(self, batches: Sequence[StoredBatch]) -> None:
        """Hands over new batches. For other threads."""
        with self._lock:
            self._missed = self._missed or len(self._new_batches) + len(batches) > MAX_NEW_BATCHES
            self._new_batches.extend(batches)
        self._wake()

    def on_missed(self) -> None:
        """There are batches on the disk that `on_committed` did not hand over. For other threads."""
        self._missed = True
        self._wake()

    def on_jump(self, jump: ClockJump) -> None:
        """The clock jumped: what was never sent is corrected first. For other threads."""
        with self._lock:
            self._jumps.append((jump, self._buffer.last_id()))
        self._wake()

    def report(self, text: bytes) -> None:
        """Tells the gateway what became of its settings, as soon as there is a connection. For other threads."""
        self._reports.append(text)
        self._wake()

    def stop(self) -> None:
        """Ends the thread soon; nothing is lost by it. For other threads."""
        self._stopping = True
        self._wake()

    @property
    def paused_for_s(self) -> float:
        """How much longer the gateway wants silence."""
        return self._pause.left_s(self._now_s())

    def run(self) -> None:
        """Until `stop`: connect, drain, and after every failure wait and try again."""
        while not self._stopping:
            try:
                self._drain_one_connection()
            except StoreDamaged as error:
                self._disconnect(error)
                self._repair_buffer()
                self._wait(self._backoff.next_delay_s())
            except (LinkError, StoreError) as error:
                self._disconnect(error)
                self._wait(self._backoff.next_delay_s())
        self._close_uplink()
        if self._probe:
            self._probe.stop()

    def _drain_one_connection(self) -> None:
        uplink = self._parts.make_uplink(self._settings.uplinks[self._regions.index])
        try:
            uplink.open()
            self._parts.clock_corrector.mark_sending()
        except BaseException:
            uplink.close()
            raise
        self._uplink = uplink
        if uplink.region != self._ack_wait_region:
            self._ack_wait_region = uplink.region
            self._ack_wait.reset()
        self.dispatcher.on_connected(uplink.region)
        self._parts.link_budget.on_connected()
        self.connected_region = uplink.region
        self.takeovers.on_connected(self._now_s())
        self.is_healthy = self._ack_wait.waiting_since_s is None
        log.info("uplink connected", region=uplink.region)
        while not self._stopping and not self._is_leaving_now():
            self._run_once(uplink)
        self._close_uplink()
        self.dispatcher.on_disconnected()

    def _run_once(self, uplink: Uplink) -> None:
        self._take_new_batches()
        self._follow_buffer()
        now_s = self.heartbeat_s = self._now_s()
        while self._reports:
            uplink.report(self._reports.popleft())
        busy = self._send(uplink, now_s)
        timeout_s = 0.0 if busy else self._wait_at_most_s(now_s)
        if self._wakeup.is_set():
            self._wakeup.clear()
            timeout_s = 0.0
        for event in uplink.poll(timeout_s):
            self._handle_safely(event)
        self._maintain(uplink, self._now_s())

    def _send(self, uplink: Uplink, now_s: float) -> bool:
        """Sends up to a burst; whether there is more to send."""
        account = self._parts.link_budget
        self._has_nothing_to_send = False
        if self._leave_by_s is not None or now_s < self._resume_at_s:
            return False
        if self.gateway_absent and self.dispatcher.in_flight:
            return False
        is_paused = self._pause.left_s(now_s) > 0
        allowed = account.allowed_classes(now_s)
        for _ in range(1 if self.gateway_absent else BURST_BATCHES):
            if account.wait_s(now_s) > 0:
                return False
            batch = self.dispatcher.take_next(now_s, allowed & self._urgent if is_paused else allowed)
            if batch is None:
                self._has_nothing_to_send = not is_paused
                return False
            uplink.send(batch)
            account.charge_estimate(now_s, len(batch.data))
            self._ack_wait.on_sent(now_s)
            self._pause.on_sent(now_s)
        return not self.gateway_absent

    def _handle_safely(self, event: UplinkEvent) -> None:
        """No message of the gateway ends the thread: what cannot be handled is dead-lettered."""
        try:
            self._handle(event)
        except AgentError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not come back with the next delivery
            self._parts.dead_letters.add(type(event).__name__, repr(error), repr(event).encode())

    def _handle(self, event: UplinkEvent) -> None:
        if isinstance(event, Ack):
            self._on_acked(event)
        elif isinstance(event, RefusedBatch):
            self._on_refused(event)
        elif isinstance(event, PushedSettings):
            self._parts.on_push(event.text)
        elif isinstance(event, NoGateway):
            self._on_no_gateway()
        else:
            self._parts.dead_letters.add(event.source, event.reason, event.payload)

    def _on_no_gateway(self) -> None:
        """What was on its way is sent again, one batch at first, after a wait that doubles up to `backoff_max_s`."""
        now_s = self._now_s()
        if not self.gateway_absent:
            log.warning("no gateway is subscribed at the broker", region=self.connected_region)
        self.gateway_absent, self.is_healthy, self._has_nothing_to_send = True, False, False
        self.dispatcher.on_disconnected()
        if now_s >= self._resume_at_s:
            self._resume_at_s = now_s + self._backoff.next_delay_s()

    def _on_acked(self, event: Ack) -> None:
        now_s = self._now_s()
        self._pause.request(now_s, event.pause_s)
        count = self.dispatcher.on_acked(event.epoch, event.seqs)
        if count == 0:
            self.acks_ignored += bool(event.seqs)
            return
        self.records_acked += count
        self.region_acked = self.connected_region
        self._ack_wait.on_acked(now_s, more_in_flight=self.dispatcher.in_flight > 0)
        self.gateway_absent, self._resume_at_s = False, 0.0
        if not self.takeovers.is_suspected:
            self._backoff.reset()
        self._regions.on_success()
        if self._prune_at_s is None:
            self._prune_at_s = now_s + self._settings.buffer.prune_delay_s

    def _on_refused(self, event: RefusedBatch) -> None:
        now_s, in_flight = self._now_s(), self.dispatcher.in_flight
        dead_lettered = self.dispatcher.on_refused(now_s, event.epoch, event.seqs, event.reason)
        if self.dispatcher.in_flight == in_flight:
            self.acks_ignored += 1
            return
        log.error("the gateway refused a batch", reason=event.reason, records=event.seqs.count)
        self._buffer.count("refused", 1)
        if dead_lettered:
            log.error("dead letter", reason=event.reason, batches=dead_lettered)
        if not self.dispatcher.region_refuses_all:
            self._ack_wait.on_acked(now_s, more_in_flight=self.dispatcher.in_flight > 0)
        else:
            self._ack_wait.on_sent(now_s)

    def _maintain(self, uplink: Uplink, now_s: float) -> None:
        self._parts.link_budget.charge_counted(now_s, *uplink.wire_bytes())
        self.takeovers.on_alive(now_s)
        self._check_uplink(uplink.region, now_s)
        self.dispatcher.retry_overdue(now_s)
        if self._prune_at_s is not None and now_s >= self._prune_at_s:
            self._prune_at_s = None
            self._buffer.prune_acknowledged()
        self._probe_preferred(now_s)

    def _check_uplink(self, region: str, now_s: float) -> None:
        """Sets `is_healthy`: no acknowledgement is overdue. Raises LinkError when it is time for another region."""
        if self._has_nothing_to_send and self.dispatcher.in_flight == 0 and not self.dispatcher.region_refuses_all:
            self._ack_wait.reset()
        since_s, was_healthy = self._ack_wait.waiting_since_s, self.is_healthy
        is_answered = since_s is None or now_s - since_s < self._settings.drain.ack_timeout_s
        self.is_healthy = is_answered and not self.gateway_absent
        if was_healthy and not self.is_healthy:
            log.warning("no acknowledgement in time", region=region)
        if since_s is None:
            self._regions.on_success()
        elif now_s - since_s >= self._settings.failover.after_s and self._regions.on_failure(now_s, since_s=since_s):
            raise LinkError(f"{region} is silent")

    def _probe_preferred(self, now_s: float) -> None:
        if self._probe is None:
            if self._regions.should_probe(now_s):
                preferred = self._settings.uplinks[0]
                self._probe = Probe(lambda: self._parts.make_uplink(preferred), self._settings.failover.hold_s)
        elif self._probe.held is not None and self._leave_by_s is None:
            held, self._probe = self._probe.held, None
            if self._regions.on_probed(now_s, held=held):
                self._leave_by_s = now_s + LEAVE_WITHIN_S

    def _is_leaving_now(self) -> bool:
        """Whether to change to the preferred region now: nothing is on its way any more, or it takes too long."""
        if self._leave_by_s is None:
            return False
        if self.dispatcher.in_flight and self._now_s() < self._leave_by_s:
            return False
        self._leave_by_s = None
        log.info("back to the preferred region", region=self._settings.uplinks[0].region)
        return True

    def _wait_at_most_s(self, now_s: float) -> float:
        waits = [MAX_WAIT_S, self.dispatcher.next_event_in(now_s), self._parts.link_budget.wait_s(now_s) or None]
        times_s = [self._prune_at_s, self._leave_by_s, self._pause.until_s or None, self._resume_at_s or None]
        waits.extend(moment - now_s for moment in times_s if moment is not None and moment > now_s)
        if self._probe is not None or self._leave_by_s is not None:
            waits.append(1.0)
        return max(0.0, min(wait for wait in waits if wait is not None))

    def _take_new_batches(self) -> None:
        with self._lock:
            new_batches, missed = list(self._new_batches), self._missed
            self._new_batches.clear()
            self._missed = False
        if missed:
            self.dispatcher.on_missed()
        if new_batches:
            self.dispatcher.on_committed(self._now_s(), new_batches)

    def _follow_buffer(self) -> None:
        """Does what a rebuilt buffer or a jump of the clock calls for, before anything else is sent."""
        if self._generation != self._buffer.generation:
            self._generation = self._buffer.generation
            self.dispatcher.rewind()
        while self._jumps:
            corrected = self._parts.clock_corrector.correct(*self._jumps[0], self.dispatcher.maybe_sent)
            self._jumps.popleft()
            self.dispatcher.reload()
            log.info("corrected times", batches=corrected)

    def _disconnect(self, error: Exception) -> None:
        region = self.connected_region or self._settings.uplinks[self._regions.index].region
        self._close_uplink()
        self.dispatcher.on_disconnected()
        if isinstance(error, LinkClosed):
            self.takeovers.on_ended(self._now_s())
        problem = self.takeovers.problem if isinstance(error, LinkClosed) else ""
        log.warning("uplink lost", region=region, error="; ".join(filter(None, (str(error), problem))))
        if isinstance(error, LinkError) and self._regions.on_failure(self._now_s()):
            log.warning("going to another region", region=self._settings.uplinks[self._regions.index].region)
            self._backoff.reset()

    def _repair_buffer(self) -> None:
        try:
            self._buffer.repair(self._generation)
        except StoreError as error:
            log.error("the buffer cannot be rebuilt", reason=error.reason, error=str(error))

    def _close_uplink(self) -> None:
        uplink, self._uplink = self._uplink, None
        self.connected_region = self.region_acked = None
        self.is_healthy = self.gateway_absent = False
        self._resume_at_s = 0.0
        if uplink is not None:
            uplink.close()

    def _wait(self, wait_s: float) -> None:
        """Waits without a connection; news are taken in the meantime, so that they do not pile up."""
        until_s = self._now_s() + wait_s
        while not self._stopping and (remaining_s := until_s - self._now_s()) > 0:
            self._parts.wait(self._wakeup, remaining_s)
            self._wakeup.clear()
            self._take_new_batches()
            self.heartbeat_s = self._now_s()

    def _wake(self) -> None:
        self._wakeup.set()
        uplink = self._uplink
        if uplink is not None:
            with suppress(OSError):
                uplink.wake()
