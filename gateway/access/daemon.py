"""The access daemon: the registry and the lists in, its broker's files and sessions out. One loop, and its threads."""

from __future__ import annotations

import os
import queue
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from threading import Event
from typing import NamedTuple

import structlog
from cryptography import x509

from gateway.access.access_key import AccessKey
from gateway.access.apply import StepRunner
from gateway.access.broker import BrokerFiles, open_guard
from gateway.access.broker_conf import write_broker_conf
from gateway.access.broker_log import BrokerLog, RefusedConnection
from gateway.access.config import AccessSettings, BrokerProcessPlace
from gateway.access.core import AccessCore, CoreSettings
from gateway.access.issued import IssuedReader
from gateway.access.metrics import AccessMetrics
from gateway.access.own_list import OwnList
from gateway.access.publisher import AccessPublisher
from gateway.access.region_enrolment import RegionEnrolment
from gateway.access.revocation import LISTS_TOPIC, ListRefused, RevocationList, read_list_message
from gateway.access.seen_entries import SeenEntries
from gateway.access.status import AccessStatus, RefusedEnrolment
from gateway.errors import AddressTaken, ClockSetBack, GatewayError, ThreadEnded, last_line
from identity.publication_id import PROPERTY
from identity.registry_messages import DevicePublication, EntryRefused
from identity.registry_reader import DeviceRegistry, Outranked, RegistryReader, Taken
from runtime.compacted_topic import CompactedTopicReader, TopicMessage, TopicStanding
from runtime.status_server import StatusServer, json_answer, metrics_answer

__all__ = ["AccessDaemon"]

MAX_QUEUED = 10_000
"""Messages between the readers' threads and the loop; a reader waits where there is no room."""
_TICK_S = 1.0
_RETRY_S = 0.5
_CLOCK_BACK_S = 3600.0
_SEEN = "seen-entries.sqlite"
"""In the folder of the region's authority, which is the daemon's alone."""
_LOG = structlog.get_logger("access")


class _Kept(NamedTuple):
    is_closed: bool


_Event = DevicePublication | RevocationList | TopicStanding | TopicMessage


class AccessDaemon:
    """One region's daemon. `run` until `stop` is set."""

    def __init__(self, settings: AccessSettings, clock: Callable[[], float] = time.time) -> None:
        """Raises OSError, IdentityError, SettingsError."""
        self._settings, self._clock = settings, clock
        self.metrics = AccessMetrics()
        self._events: queue.Queue[_Event] = queue.Queue(MAX_QUEUED)
        self._files = BrokerFiles(settings.broker, settings.region, settings.gateways)
        self._own = OwnList(settings.authority, self._files.lists)
        self._issued = IssuedReader(self._own.folder)
        self._root = x509.load_pem_x509_certificate(self._own.folder.root_pem)
        self._operators = operators = settings.registry.followed()
        self._key = AccessKey(settings.registry, settings.region, operators)
        self._seen = SeenEntries(self._own.folder.folder / _SEEN)
        self._publisher = AccessPublisher(settings.registry, settings.region, self._key, self._seen.message)
        guard = open_guard(settings.broker, settings.region)
        registry, reading = DeviceRegistry(self._keep, settings.registry.max_devices), settings.registry
        self._runner = StepRunner(self._files, guard, self._publisher, self.metrics, own_list=self._own, clock=clock)
        self._core = AccessCore(
            CoreSettings(
                own_issuer=self._own.issuer,
                settle_s=settings.settle_ms / 1000,
                look_after_s=settings.look_after_s,
            ),
            lambda name: (kept := registry.get(name)) is not None and not kept.is_closed,
        )
        # As the broker has them: those of other regions hold until their topic is read.
        for one in self._files.lists.values():
            self._core.on_list(one, clock())
        # Before the registry: whose the certificates are that are on our list.
        self._read_issued(clock())
        if self._own.current is not None:
            self._core.on_own_list(self._own.current, clock())
        self._ahead: dict[str, RevocationList] = {}
        self._check_signed = None if operators is None else operators.check_signed
        self._reader = RegistryReader(
            reading.service_url,
            reading.access,
            registry,
            check_signed=self._check_signed,
            starts_anew=(lambda: False) if operators is None else operators.look,
            on_message=self._on_entry,
            on_standing=self._events.put,
        )
        self._lists = CompactedTopicReader(reading.service_url, reading.access, LISTS_TOPIC, self._events.put)
        self._enrolment = (
            RegionEnrolment(settings, self._own.folder, self._key, clock) if settings.enrolment is not None else None
        )
        self._logs = dict(_logs(settings))
        self._problem, self._retry_at_s, self._tick_at_s = "starting", 0.0, 0.0
        self._not_applied, self._is_displaced = "", False
        self._clock_ahead_s = clock() - time.monotonic()
        self._first = AccessStatus(
            region=settings.region, pid=os.getpid(), started_at=datetime.now(UTC).isoformat(timespec="seconds")
        )
        self.status = self._first

    def prepare(self) -> None:
        """Make the files that the brokers need to start: where they are missing, and their configuration as it is now.

        Raises OSError.
        """
        write_broker_conf(self._settings)
        if not self._settings.broker.rules_file.exists():
            self._files.write_rules(frozenset())
        if self._own.issuer not in self._files.lists:
            own = self._own.update({}, datetime.fromtimestamp(self._clock(), UTC))
            self._files.write_lists([own, *self._files.lists.values()])
        if self._enrolment is not None:
            self._enrolment.prepare()

    def run(self, stop: Event) -> None:
        """Serve until `stop` is set. Raises AddressTaken, ClockSetBack, ThreadEnded."""
        # First, because the broker may be waiting for its files.
        self.prepare()
        with self._serve() as server, self._seen:
            self._restore()
            for thread in (self._reader, self._lists, self._publisher):
                thread.start()
            try:
                while not stop.is_set():
                    self._turn()
                    if not (self._reader.reader.is_running and self._lists.is_running and self._publisher.is_running):
                        raise ThreadEnded("a thread of the access daemon ended")
                    if self._enrolment is not None and self._enrolment.has_ended:
                        raise ThreadEnded("the thread that enrols devices ended")
                    if not server.is_serving:
                        raise ThreadEnded("the thread that serves the status ended")
            finally:
                if self._enrolment is not None:
                    self._enrolment.close()
                # What stays is right: a device that was closed stays closed without us.
                for thread in (self._reader, self._lists, self._publisher):
                    thread.close()

    def _restore(self) -> None:
        """What was taken before the last end holds from the beginning: the topic may have an older entry by now."""
        for publication in self._seen.restore(self._reader.registry, self._check_signed):
            self._take(publication)
            try:
                if self._enrolment is not None:
                    self._enrolment.take(publication)
            except Exception as error:  # noqa: BLE001 - as in `_take`
                self._not_applied = f"{publication.entry.name} is not known to enrolment: {last_line(error)}"

    def _turn(self) -> None:
        self._take_events()
        now_s = self._clock()
        if now_s >= self._tick_at_s:
            self._tick_at_s = now_s + _TICK_S
            self._tick(now_s)
        if self._enrolment is not None:
            self._enrolment.turn()
        # A look at a broker that is down would fail like the step.
        if now_s < self._retry_at_s:
            return
        step = self._core.take_step(now_s)
        try:
            if step is not None:
                step = self._runner.run(step)
                self.metrics.step_s.observe(self._clock() - now_s)
            self._runner.look(self._core.take_looks(self._clock()))
            self._problem = ""
            if step is not None:
                self._problem = f"sessions that are not ended: {', '.join(step.end)[:500]}"
                self._retry_at_s = now_s + _RETRY_S
        except Exception as error:  # noqa: BLE001 - whatever it is, it is tried again: what the broker has is old, not wrong
            self.metrics.steps_failed.inc()
            self._problem = str(error) if isinstance(error, OSError | GatewayError) else last_line(error)
            # A broker that is down must not make a loop that does nothing else.
            self._retry_at_s = now_s + _RETRY_S
        if step is not None and self._problem:
            self._core.on_failed(step, now_s)

    def _take_events(self) -> None:
        now_s = self._clock()
        due_s = self._core.due_s()
        wait_s = min(_TICK_S, max(0.0, due_s - now_s)) if due_s is not None else _TICK_S
        if now_s < self._retry_at_s:
            wait_s = self._retry_at_s - now_s
        try:
            self._take(self._events.get(timeout=max(wait_s, 0.001)))
            # All that is there: a thousand changes at once are one step.
            for _ in range(MAX_QUEUED):
                self._take(self._events.get_nowait())
        except queue.Empty:
            return

    def _take(self, event: _Event) -> None:
        try:
            self._apply(event)
        except Exception as error:  # noqa: BLE001 - what one entry does must not keep the others from being applied
            self._not_applied = f"{_name_of(event)} is not applied: {last_line(error)}"
            _LOG.error("a change cannot be applied", problem=self._not_applied)

    def _apply(self, event: _Event) -> None:
        now_s = self._clock()
        if isinstance(event, DevicePublication):
            self._core.on_device(event, now_s)
            # Looked at before the step: a certificate may have been signed a moment ago.
            if not event.entry.may_connect:
                self._read_issued(now_s)
        elif isinstance(event, TopicStanding):
            if event.was_current:
                self._core.on_ready(now_s)
                self._read_issued(now_s)
                if self._enrolment is not None:
                    self._enrolment.start()
        elif isinstance(event, TopicMessage):
            self._take_list(event, now_s)

    def _take_list(self, message: TopicMessage, now_s: float) -> None:
        try:
            found = read_list_message(message.key, message.body, self._root)
        except ListRefused as refused:
            self.metrics.lists.labels("refused").inc()
            _LOG.warning("revocation list refused", problem=str(refused))
            self._is_displaced |= message.key == self._own.issuer
            return
        if found.issuer == self._own.issuer:
            self._take_own_list(found, now_s)
            return
        # A broker refuses everybody of an issuer whose list begins later: it waits for its time, on whichever side
        # the clock is wrong.
        if found.this_update.timestamp() > now_s:
            _LOG.warning("a revocation list begins in the future, and waits", issuer=found.issuer, at=found.this_update)
            self._ahead[found.issuer] = found
            self.metrics.lists.labels("ahead").inc()
            return
        self.metrics.lists.labels("taken" if self._core.on_list(found, now_s) else "held already").inc()

    def _take_own_list(self, found: RevocationList, now_s: float) -> None:
        # Our own comes back from the topic; one that is later than ours shows that our disk is an older one.
        if self._own.follow(found):
            self._core.on_own_list(found, now_s)
        elif self._own.current is not None and self._own.current.is_later(found):
            # Sent again by somebody, or one of ours on its way: compaction would keep that one.
            self._is_displaced = True

    def _take_due_lists(self, now_s: float) -> None:
        for issuer in [one.issuer for one in self._ahead.values() if one.this_update.timestamp() <= now_s]:
            self._core.on_list(self._ahead.pop(issuer), now_s)

    def _read_issued(self, now_s: float) -> None:
        for one in self._issued.read_new():
            self._core.on_issued(one.name, one.serial, one.not_after_s, now_s)

    def _keep(self, publication: DevicePublication, _: TopicMessage) -> _Kept:
        return _Kept(not publication.entry.may_connect)

    def _on_entry(self, message: TopicMessage, became: Taken | Outranked | EntryRefused) -> None:
        if isinstance(became, Taken):
            # Before the loop hears of it: who is locked out gets no certificate meanwhile.
            try:
                if self._enrolment is not None:
                    self._enrolment.take(became.publication)
            finally:
                self._events.put(became.publication)
                # Last: no session waits for a disk.
                self._seen.keep(message)
            return
        # What nobody signed who may counts for nothing, but compaction would keep it instead of what holds.
        name = became.key if isinstance(became, EntryRefused) else became.publication.entry.name
        if isinstance(became, EntryRefused):
            self._publisher.refuse(message.properties.get(PROPERTY, ""), became.reason, message.published_ms / 1000)
        if isinstance(became, Outranked):
            _LOG.warning("an older entry came after a newer one, which holds", device=name)
        # Each region does it: the one that enrols the device may be away.
        # The same one: its key is trusted no more, so it would come back to us for ever.
        held = self._seen.message(name) if self._reader.registry.get(name) is not None else None
        if held is not None and held.body != message.body:
            self._publisher.publish_again(name)

    def _tick(self, now_s: float) -> None:
        ahead_s = now_s - time.monotonic()
        # What ended by the former clock was forgotten: a start knows all of it again.
        if ahead_s < self._clock_ahead_s - _CLOCK_BACK_S:
            raise ClockSetBack("the clock was set back by more than an hour: everything is read again after a start")
        self._clock_ahead_s = ahead_s
        try:
            self._read_issued(now_s)
            self._runner.renew()
            self._take_due_lists(now_s)
            if self._is_displaced:
                self._is_displaced = False
                self._runner.publish_list_again()
            if self._core.is_ready and self._runner.is_other_broker:
                self._core.on_broker(now_s)
        except Exception as error:  # noqa: BLE001 - see _turn
            self._problem = str(error) if isinstance(error, OSError | GatewayError) else last_line(error)
        self._report()

    def _report(self) -> None:
        standing, counts, metrics = self._reader.standing, self._reader.registry.counts, self.metrics
        topic = self._lists.standing
        problem = self._problem or (f"registry: {standing.problem}" if not standing.is_current else "")
        problem = problem or (f"revocation lists: {topic.problem}" if not topic.is_current else "")
        problem = problem or (self._operators.problem if self._operators is not None else "")
        problem = problem or self._not_applied or standing.last_unhandled or topic.last_unhandled
        problem = problem or self._key.problem(datetime.fromtimestamp(self._clock(), UTC)) or self._publisher.problem
        problem = problem or self._seen.problem
        asked = self._enrolment
        problem = problem or "; ".join(asked.problems if asked is not None else ())
        refused = self._refused()
        # From the file: what the broker has counts, not what we meant to give it.
        lists = {one.issuer: one.next_update.timestamp() for one in self._files.lists.values()}
        metrics.closed.set(self._core.closed_devices)
        metrics.revoked.set(self._core.revoked_certificates)
        metrics.list_ends.set(min(lists.values(), default=0))
        key_ends_s = self._key.ends.timestamp() if self._key.ends is not None else None
        metrics.key_ends.set(key_ends_s or 0)
        metrics.registry_up.set(standing.is_current)
        metrics.healthy.set(not problem)
        for outcome, count in (("taken", counts.taken), ("refused", counts.refused), ("outranked", counts.outranked)):
            metrics.set_entries(outcome, count)
        for reason, count in dict(counts.refused_by).items():
            metrics.entries_refused.labels(reason).set(count)
        enrolments = dict(asked.outcomes) if asked is not None else {}
        metrics.set_enrolments(enrolments)
        metrics.set_refused_connections(refused)
        self.status = self._first.model_copy(
            update={
                "healthy": not problem,
                "last_error": problem,
                "registry_current": standing.is_current,
                "registry_unreachable_since_s": standing.unreachable_since_s,
                "devices_known": len(self._reader.registry),
                "devices_closed": self._core.closed_devices,
                "certificates_revoked": self._core.revoked_certificates,
                "rules_version": self._files.rules_version,
                "lists": lists,
                "key_ends_s": key_ends_s,
                "entries_refused": counts.refused,
                "entries_refused_by": dict(counts.refused_by),
                "entries_outranked": counts.outranked,
                "last_entry_refused": self._reader.registry.last_refused,
                "enrolments": enrolments,
                "enrolments_refused": [RefusedEnrolment.of(one) for one in (asked.refusals if asked else ())],
                "connections_refused": {broker: dict(counted) for broker, counted in refused.items()},
                **metrics.counts,
            }
        )

    def _refused(self) -> dict[str, Counter[RefusedConnection]]:
        """Connections that each broker refused, from its log."""
        for log in self._logs.values():
            log.read()
        return {broker: log.refused for broker, log in self._logs.items()}

    def _serve(self) -> StatusServer:
        where = self._settings.status
        routes = {
            "/metrics": lambda: metrics_answer(self.metrics.registry),
            "/status": lambda: json_answer(self.status.model_dump_json(indent=2)),
            "/health": lambda: json_answer(self.status.model_dump_json(indent=2), is_good=self.status.healthy),
        }
        try:
            return StatusServer(where.host, where.port, routes)
        except OSError as error:
            raise AddressTaken(f"{where.host}:{where.port}: {error.strerror}; change status.port") from error


def _name_of(event: _Event) -> str:
    if isinstance(event, DevicePublication):
        return event.entry.name
    return f"a list of {event.key!r:.100}" if isinstance(event, TopicMessage) else "the registry"


def _logs(settings: AccessSettings) -> Iterator[tuple[str, BrokerLog]]:
    places: dict[str, BrokerProcessPlace] = {"devices": settings.broker}
    if settings.enrolment is not None:
        places["claims"] = settings.enrolment.broker
    for broker, place in places.items():
        if place.log_file is not None:
            yield broker, BrokerLog(place.log_file)
