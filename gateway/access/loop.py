"""The access daemon's loop: changes in, steps on the broker out. One thread.

A failure is named, counted and repeated, and blocks nothing else. Delays use a monotonic clock; certificates, lists and
entries use the time of day.
"""

from __future__ import annotations

import math
import queue
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import structlog
from cryptography import x509

from gateway.access.broker import StepRunner
from gateway.access.core import AccessCore, BrokerStep
from gateway.access.enrolment_service import RegionEnrolment
from gateway.access.issued import IssuedReader, IssuedToDevice
from gateway.access.revocation import ListRefused, OwnList, RevocationList, read_list_message
from gateway.access.status import AccessMetrics
from gateway.errors import GatewayError, last_line
from waybill.identity.registry_messages import DevicePublication
from waybill.pulsar.compacted_topic import TopicMessage, TopicStanding

SETTLE_S: Final = 0.02
"""Changes within this time after the first one are one step."""
LOOK_AFTER_S: Final = 1.0
"""When to look for a new session of a device for the first time; then each time after twice as long."""
LOOK_FOR_S: Final = 240.0
"""How long to look. Mosquitto closes a connection without a CONNECT after 90 s."""
MAX_LOOKS: Final = 10_000
_LOOKS_AT_ONCE: Final = 500
"""Takes a tenth of a second, which a revocation may wait."""


class _Look(NamedTuple):
    at_s: float
    wait_s: float


class SessionLooks:
    """Devices whose sessions were ended, and when to look for new ones.

    Several times: a TLS connection from before the revocation may send its CONNECT long after it.
    """

    def __init__(self) -> None:
        self._looks: OrderedDict[str, _Look] = OrderedDict()

    def add(self, names: Iterable[str], now_s: float) -> None:
        """These sessions were ended. Beyond `MAX_LOOKS` devices are not looked for."""
        for name in names:
            if len(self._looks) >= MAX_LOOKS and name not in self._looks:
                return
            self._looks[name] = _Look(now_s + LOOK_AFTER_S, LOOK_AFTER_S)

    def due_s(self) -> float:
        """When the next look is due; inf if none is."""
        return min((look.at_s for look in self._looks.values()), default=math.inf)

    def take(self, now_s: float) -> list[str]:
        due = [name for name, look in self._looks.items() if look.at_s <= now_s][:_LOOKS_AT_ONCE]
        for name in due:
            wait_s = 2 * self._looks.pop(name).wait_s
            if wait_s <= LOOK_FOR_S:
                self._looks[name] = _Look(now_s + wait_s, wait_s)
        return due


# Revocation lists from the topic.

FOLLOW_S: Final = 60.0
"""Between two lists of our own name that are followed, because a second daemon may answer ours."""
_LOG = structlog.get_logger("access")


class ListIntake:
    """Handles each revocation list from the topic. `root`: signs the authorities that may have one."""

    def __init__(self, core: AccessCore, own: OwnList, root: x509.Certificate) -> None:
        self._core, self._own, self._root = core, own, root
        self._followed_s = -math.inf

    def take(self, message: TopicMessage, now_s: float) -> None:
        try:
            found = read_list_message(message.key, message.body, self._root)
        except ListRefused as refused:
            _LOG.warning("revocation list refused", problem=str(refused))
            return
        if found.issuer == self._own.issuer:
            self._take_own(found, now_s)
        elif found.this_update.timestamp() > now_s:
            # A broker would refuse every device of that issuer. Its region signs another list daily.
            _LOG.error("a revocation list begins in the future", issuer=found.issuer, at=found.this_update)
        else:
            self._core.on_list(found, now_s)

    def _take_own(self, found: RevocationList, now_s: float) -> None:
        if abs(now_s - self._followed_s) >= FOLLOW_S and self._own.follow(found):
            # The next step signs its serials.
            self._followed_s = now_s
            self._core.on_own_list(found, now_s)
            _LOG.warning(
                "a list of our authority that this daemon did not sign is followed; stop other daemons of this region",
                number=found.number,
            )


MAX_QUEUED: Final = 10_000
"""Events between the readers' threads and the loop; a reader waits while it is full."""
# Urgent work is triggered by events, not by the tick.
TICK_S: Final = 1.0
RETRY_S: Final = 0.5
CLOCK_BACK_S: Final = 3600.0

AccessEvent = DevicePublication | TopicStanding | TopicMessage
"""A device's publication in force, the reader's state, or a message of the lists' topic."""


class AccessLoop:
    """Call `turn` repeatedly; any thread may `put`. `on_tick` is called each second, also after failures.

    Until `may_begin` is true, the broker keeps what it has.
    """

    def __init__(
        self,
        core: AccessCore,
        runner: StepRunner,
        lists: ListIntake,
        issued: IssuedReader,
        metrics: AccessMetrics,
        *,
        enrolment: RegionEnrolment | None = None,
        may_begin: Callable[[], bool] = lambda: True,
        on_tick: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._core, self._runner, self._lists, self._issued = core, runner, lists, issued
        self._metrics, self._enrolment, self._on_tick = metrics, enrolment, on_tick
        self._may_begin, self._was_read = may_begin, False
        self._clock, self._monotonic = clock, monotonic
        self._events: queue.Queue[AccessEvent] = queue.Queue(MAX_QUEUED)
        self._looks = SessionLooks()
        self._changes, self._settled_s = 0, math.inf
        self._retry_at_s = self._tick_at_s = monotonic()
        self._clock_ahead_s = clock() - monotonic()
        self.not_applied = ""
        """The last change that could not be applied, and why."""
        self.problem = "starting"

    def put(self, event: AccessEvent) -> None:
        """Add an event; waits while the queue is full."""
        self._events.put(event)

    def turn(self) -> None:
        """Wait for events, at most for a second, and do what is due. Raises GatewayError."""
        self._take_events()
        if self._monotonic() >= self._tick_at_s:
            self._tick_at_s = self._monotonic() + TICK_S
            self._tick(self._clock())
        # A look would fail like the step while the broker is down.
        if self._monotonic() >= self._retry_at_s:
            self._step()
        # After the step, so that no lockout waits for tokens.
        if self._enrolment is not None:
            self._enrolment.turn()
        # A few of the waiting certificates, so that no step waits for all of them.
        if self._issued.is_behind:
            self._take_issued(self._issued.read_waiting(), self._clock())

    def take(self, event: AccessEvent) -> None:
        try:
            self._apply(event, self._clock())
        except Exception as error:  # noqa: BLE001 - what one entry does must not keep the others from being applied
            self._metrics.counts["changes_failed"] += 1
            self.not_applied = f"{_name_of(event)} is not applied before a restart: {last_line(error)}"
            _LOG.error("a change cannot be applied", problem=self.not_applied)

    def read_issued(self, now_s: float) -> None:
        self._take_issued(self._issued.read_new(), now_s)

    def _take_issued(self, found: Iterable[IssuedToDevice], now_s: float) -> None:
        for one in found:
            self._core.on_issued(one.name, one.serial, one.not_after_s, now_s)

    def _step(self) -> None:
        step = self._take_step()
        try:
            if step is not None:
                began_s = self._monotonic()
                ended, step = step.end, self._runner.run(step)
                self._metrics.step_s.observe(self._monotonic() - began_s)
                self._looks.add(ended, self._monotonic())
            # A device that was resumed meanwhile may have a session.
            due = filter(self._core.is_closed, self._looks.take(self._monotonic()))
            self._runner.end_returned_sessions([*due])
            self.problem = ""
            if step is not None:
                self.problem = f"sessions that are not ended: {', '.join(step.end)[:500]}"
        except Exception as error:  # noqa: BLE001 - whatever it is, it is tried again: what the broker has is old, not wrong
            self._metrics.counts["steps_failed"] += 1
            self.problem = _text(error)
        if self.problem:
            # Do not busy-loop while the broker is down.
            self._retry_at_s = self._monotonic() + RETRY_S
            if step is not None:
                self._core.on_failed(step)
        self._count_changes()

    def _count_changes(self) -> None:
        if self._core.changes != self._changes:
            self._changes = self._core.changes
            self._settled_s = min(self._settled_s, self._monotonic() + SETTLE_S)

    def _take_step(self) -> BrokerStep | None:
        self._count_changes()
        # Without a change a step may still be due, because a certificate ended.
        if self._monotonic() < self._settled_s < math.inf:
            return None
        step = self._core.take_step(self._clock())
        if step is not None:
            self._settled_s = math.inf
        return step

    def _take_events(self) -> None:
        wait_s = self._retry_at_s - self._monotonic()
        if self._issued.is_behind:
            wait_s = 0.0
        elif wait_s <= 0:
            due_s = min(self._settled_s, self._looks.due_s()) if self._core.is_ready else math.inf
            wait_s = due_s - self._monotonic()
        try:
            self.take(self._events.get(timeout=min(max(wait_s, 0.001), TICK_S)))
            # Take all waiting events: a thousand changes at once are one step.
            for _ in range(MAX_QUEUED):
                self.take(self._events.get_nowait())
        except queue.Empty:
            return

    def _apply(self, event: AccessEvent, now_s: float) -> None:
        if isinstance(event, DevicePublication):
            self._core.on_device(event)
        elif isinstance(event, TopicMessage):
            self._lists.take(event, now_s)
        elif event.was_current:
            self._was_read = True
            self._begin(now_s)

    def _begin(self, now_s: float) -> None:
        if self._was_read and self._may_begin():
            self._core.on_ready()
            self.read_issued(now_s)
            if self._enrolment is not None:
                self._enrolment.start()

    def _tick(self, now_s: float) -> None:
        ahead_s = now_s - self._monotonic()
        # Certificates that had ended by the former clock were forgotten; a start reads them again.
        if ahead_s < self._clock_ahead_s - CLOCK_BACK_S:
            raise GatewayError("the clock was set back by more than an hour: everything is read again after a start")
        self._clock_ahead_s = ahead_s
        try:
            if not self._core.is_ready:
                self._begin(now_s)
            self.read_issued(now_s)
            self._runner.renew()
            if self._core.is_ready and self._runner.is_other_broker:
                self._core.on_broker()
        except Exception as error:  # noqa: BLE001 - see `_step`
            self.problem = _text(error)
        self._on_tick()


def _name_of(event: AccessEvent) -> str:
    if isinstance(event, DevicePublication):
        return event.entry.name
    return f"a list of {event.key!r:.100}" if isinstance(event, TopicMessage) else "the registry"


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, OSError | GatewayError) else last_line(error)
