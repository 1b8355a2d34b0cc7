"""The access daemon, put together: the registry and the lists in, its broker's files and sessions out."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import Any, Final, NamedTuple

import structlog
from cryptography import x509

from gateway.access.access_key import AccessKey
from gateway.access.broker import BrokerFiles, StepRunner
from gateway.access.broker_log import BrokerLogs
from gateway.access.clock_watch import ClockWatch
from gateway.access.config import AccessSettings, ClaimBroker, GuardedBroker
from gateway.access.core import AccessCore
from gateway.access.displaced import MISSING, OUTRANKED, Displaced
from gateway.access.enrolment_service import RegionEnrolment
from gateway.access.issued import IssuedReader
from gateway.access.kept_entries import IN_DOUBT, DoubtfulEntries, judge_kept, rank_of
from gateway.access.loop import AccessLoop, ListIntake, SessionLooks, Settling
from gateway.access.publisher import AccessPublisher
from gateway.access.revocation import LISTS_TOPIC, OwnList
from gateway.access.seen_entries import SEEN_FILE, SeenEntries, SeenUnreadable
from gateway.access.status import AccessMetrics, AccessStatus, RefusedEnrolment
from gateway.errors import AddressTaken, ThreadEnded
from waybill.daemon.durable_file import replace_durably
from waybill.daemon.status_server import StatusServer, json_answer, metrics_answer
from waybill.identity.broker_conf import (
    broker_access_lines,
    broker_lines,
    broker_log_lines,
    conf_text,
    device_listener_lines,
    enrolment_broker_lines,
)
from waybill.identity.publication_id import PROPERTY
from waybill.identity.registry_messages import (
    ENTRY_PROPERTIES,
    CheckSigned,
    DevicePublication,
    EntryRefused,
    FollowedOperators,
    devices_topic,
    tenant_of,
)
from waybill.identity.registry_topic import BecameOfMessage, DeviceRegistry, Outranked, RegistryReader, Taken
from waybill.pulsar.compacted_topic import CompactedTopicReader, TopicMessage, TopicStanding
from waybill.pulsar.pulsar_client import TokenWatch

# The configuration files of a region's brokers, from the settings of its access daemon: one place has all paths.

# the broker runs as another user
_READABLE_BY_GROUP = 0o640


def write_broker_conf(settings: AccessSettings) -> list[Path]:
    """Write the configuration of each broker that has `server`; those that changed. Raises OSError."""
    changed = []
    for file, lines in _files(settings):
        content = conf_text(["# written by fleet-gateway access, from its settings", *lines]).encode()
        if not file.exists() or file.read_bytes() != content:
            replace_durably(file, content, mode=_READABLE_BY_GROUP)
            changed.append(file)
    return changed


def _files(settings: AccessSettings) -> Iterator[tuple[Path, list[str]]]:
    if (server := settings.broker.server) is not None:
        yield server.conf_file, _device_lines(settings.broker)
    claims = settings.enrolment.broker if settings.enrolment is not None else None
    if claims is not None and claims.server is not None:
        yield claims.server.conf_file, _claim_lines(claims)


def _device_lines(broker: GuardedBroker) -> list[str]:
    server = broker.server
    assert server is not None
    assert broker.pid_file is not None
    return [
        *broker_lines(server.port, server.bind, server.folder, server.bounds),
        *device_listener_lines(server.files, server.tls.ca, broker.rules_file),
        *broker_access_lines(
            revocations=broker.revocation_file,
            passwords=broker.password_file,
            pid_file=broker.pid_file,
            guard_socket=broker.guard_socket,
        ),
        *broker_log_lines(),
    ]


def _claim_lines(broker: ClaimBroker) -> list[str]:
    server = broker.server
    assert server is not None
    assert broker.pid_file is not None
    lines = enrolment_broker_lines(
        server.files,
        port=server.port,
        bind=server.bind,
        rules=broker.rules_file,
        passwords=broker.password_file,
        pid_file=broker.pid_file,
        factory_port=server.factory_port,
        factory_ca=server.factory_ca,
    )
    return [*lines, *broker_log_lines()]


# What holds of each device, as it was published: kept, and published again where another message came after it.

_LOG = structlog.get_logger("access")


class HeldEntries:
    """What the registry in memory holds, as messages on disk. Its reader calls `take`, any thread `message`.

    Published again is what the registry holds, whole, and never what is older than that or than what waits for our
    clock: where the disk has not got it, nothing is.
    """

    def __init__(
        self,
        registry: DeviceRegistry[Any],
        seen: SeenEntries,
        displaced: Displaced,
        check_signed: CheckSigned | None,
    ) -> None:
        self._registry, self._seen, self._check_signed = registry, seen, check_signed
        self._doubtful = DoubtfulEntries()
        self._to_come: defaultdict[str, set[str]] = defaultdict(set)
        self._missing: set[str] = set()
        self.displaced = displaced

    @property
    def problem(self) -> str:
        """Of what is held: what the topic has not got, and what no key of today is trusted for; "" if all is well."""
        missing = len(self._missing)
        lost = f"registry: {missing} devices are known here and not on the topic; they are published again"
        return "; ".join(filter(None, (lost if missing else "", self._doubtful.problem)))

    def doubt(self, name: str) -> str:
        """Why nothing is to be made of the entry that holds of a device; "" if it is the newest for all we know."""
        rank = self._registry.precedence(name)
        if rank is not None and self._registry.ahead.outranks(name, rank):
            return f"a later entry of {name} is, or may be, dated ahead of this machine's clock"
        return f"the last entry of {name} is by a key that is not trusted now" if name in self._doubtful else ""

    def restore(self) -> Iterator[DevicePublication]:
        """What was taken before the last end, and holds: the topic may have an older entry by now, or none."""
        for message in self._seen.all():
            yield from self._judge_again(message)

    def restore_late(self) -> Iterator[DevicePublication]:
        """The same where the file can be opened only now, for whoever has read the topic already."""
        if self._seen.look():
            for publication in self.restore():
                self.displaced.note(publication.entry.name, OUTRANKED)
                yield publication

    def look_at_doubtful(self) -> Iterator[DevicePublication]:
        """Other keys are trusted than before: what holds now that was in doubt, though the topic may have lost it."""
        for name in self._doubtful.names():
            with contextlib.suppress(SeenUnreadable):
                if (message := self._seen.message(name)) is not None:
                    yield from self._judge_again(message)

    def on_begin(self, tenant: str) -> None:
        """The topic of a tenant is read from its beginning: all that is known of it is to come."""
        self._to_come[tenant] = self._registry.names(tenant)

    def on_standing(self, tenant: str, standing: TopicStanding) -> None:
        """How far a tenant's topic is read. What did not come by its end is lost there: it is published again."""
        if standing.is_current:
            missing = self._to_come.pop(tenant, set())
            if missing:
                _LOG.error("the topic has lost devices that are known here", devices=len(missing))
            for name in missing:
                self.displaced.note(name, MISSING)
            self._missing |= missing

    def take(self, message: TopicMessage, became: BecameOfMessage) -> None:
        """What became of the last message of the topic. A message of a device that is not known displaces nothing."""
        name = became.key if isinstance(became, EntryRefused) else became.publication.entry.name
        message = _without_others(message)
        self._to_come[tenant_of(name)].discard(name)
        if isinstance(became, Taken):
            self._seen.keep(message)
            self._is_there(name, is_new=True)
            return
        if isinstance(became, Outranked):
            _LOG.warning("an older entry came after a newer one, which holds", device=name)
            self.displaced.note(name, OUTRANKED)
        elif isinstance(became, EntryRefused):
            self._take_refused(name, message, became.reason)
        else:
            # On a disk that was full when it came first it may be missing.
            if not self._has(name, message):
                self._seen.keep(message)
            self._is_there(name)

    def message(self, name: str) -> TopicMessage | None:
        """The message that holds of a device; None: none does, or it is not on disk. Raises SeenUnreadable."""
        rank, message = self._registry.precedence(name), self._seen.message(name)
        if message is None or rank is None or rank_of(message) != rank or self._registry.ahead.outranks(name, rank):
            return None
        return _without_others(message)

    def _judge_again(self, message: TopicMessage) -> Iterator[DevicePublication]:
        try:
            kept = judge_kept(message, self._check_signed)
        except EntryRefused:
            self._seen.note_damaged(message.key or "")
            return
        self._doubtful.put(kept)
        publication = kept.publication
        # By keys of before nobody is let in, and nobody who is locked out comes back.
        if kept.doubt and publication.entry.may_connect:
            self._registry.bar(publication.entry.name, publication.precedence)
        elif isinstance(self._registry.hold(publication, message), Taken):
            yield publication

    def _is_there(self, name: str, *, is_new: bool = False) -> None:
        """The last message of a device is the one that holds, and somebody signed it who is trusted now."""
        self._missing.discard(name)
        self._doubtful.settle(name)
        self.displaced.settle(name, is_new=is_new)

    def _take_refused(self, name: str, message: TopicMessage, reason: str) -> None:
        is_kept = self._has(name, message)
        if is_kept and reason in IN_DOUBT:
            self._doubtful.put(judge_kept(message, self._check_signed))
        if self._registry.precedence(name) is None:
            return
        # The same one, whole: it holds, and its key is trusted no more.
        if is_kept:
            self._missing.discard(name)
            self.displaced.settle(name)
        else:
            self.displaced.note(name, reason)

    def _has(self, name: str, message: TopicMessage) -> bool:
        """Whether this is known to be what is kept of a device."""
        with contextlib.suppress(SeenUnreadable):
            kept = self._seen.message(name)
            return kept is not None and _content(_without_others(kept)) == _content(message)
        return False


def _without_others(message: TopicMessage) -> TopicMessage:
    """A message with the properties of an entry alone: others are signed by nobody, and as large as anybody likes."""
    return message._replace(
        properties={key: message.properties[key] for key in ENTRY_PROPERTIES & message.properties.keys()}
    )


def _content(message: TopicMessage) -> tuple[str | None, bytes, Mapping[str, str]]:
    return message.key, message.body, dict(message.properties)


# What is said of a running access daemon: each second its parts are asked, and its status and numbers follow.


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedParts:
    """The parts of a daemon that are asked."""

    region: str
    files: BrokerFiles
    core: AccessCore
    loop: AccessLoop
    reader: RegistryReader[Any]
    lists: CompactedTopicReader
    intake: ListIntake
    issued: IssuedReader
    operators: FollowedOperators | None
    key: AccessKey
    publisher: AccessPublisher
    seen: SeenEntries
    held: HeldEntries
    clock_watch: ClockWatch
    tokens: TokenWatch
    enrolment: RegionEnrolment | None
    logs: BrokerLogs
    metrics: AccessMetrics


class AccessReport:
    """`status` is the last one that was made; other threads read it."""

    def __init__(self, parts: ReportedParts, clock: Callable[[], float] = time.time) -> None:
        self._parts, self._clock = parts, clock
        started_at = datetime.now(UTC).isoformat(timespec="seconds")
        self._first = self.status = AccessStatus(region=parts.region, pid=os.getpid(), started_at=started_at)

    def make(self) -> None:
        """Ask all parts now."""
        parts = self._parts
        parts.logs.read()
        parts.logs.end_sessions()
        problem, ends = next(self._problems(), ""), parts.key.ends
        standing, registry, enrolment = parts.reader.standing, parts.reader.registry, parts.enrolment
        counts = registry.counts
        self.status = self._first.model_copy(
            update={
                "healthy": not problem,
                "last_error": problem,
                "registry_current": standing.is_current,
                "registry_unreachable_since_s": standing.unreachable_since_s,
                "devices_known": len(registry),
                "devices_closed": parts.core.closed_devices,
                "certificates_revoked": parts.core.revoked_certificates,
                "rules_version": parts.files.rules_version,
                # From the file: what the broker has counts, not what we meant to give it.
                "lists": {one.issuer: one.next_update.timestamp() for one in parts.files.lists.values()},
                "key_ends_s": ends.timestamp() if ends is not None else None,
                "entries_refused": counts.refused,
                "entries_refused_by": dict(counts.refused_by),
                "entries_outranked": counts.outranked,
                "list_bytes": parts.publisher.list_bytes,
                "devices_left_open": parts.core.left_open,
                "answers_dropped": parts.publisher.dropped + parts.core.confirmations_dropped,
                "topics_held": dict(parts.publisher.topics_held + (enrolment.topics_held if enrolment else Counter())),
                "entries_published_again": parts.held.displaced.published.total(),
                "last_entry_refused": registry.last_refused,
                "enrolments": dict(enrolment.outcomes) if enrolment else {},
                "enrolments_refused": [RefusedEnrolment.of(one) for one in (enrolment.refusals if enrolment else ())],
                **parts.logs.status,
                **parts.metrics.counts,
            }
        )
        parts.metrics.mirrored.entries.set(counts.taken, "taken")
        parts.metrics.take(self.status)

    def _problems(self) -> Iterator[str]:
        """What is wrong now, what matters most first."""
        parts = self._parts
        standing, lists = parts.reader.standing, parts.lists.standing
        found = (
            parts.loop.problem,
            parts.tokens.ended,
            parts.clock_watch.problem,
            "" if standing.is_current else f"registry: {standing.problem}",
            "" if lists.is_current else f"revocation lists: {lists.problem}",
            parts.operators.problem if parts.operators is not None else "",
            parts.loop.not_applied,
            parts.issued.problem,
            standing.last_unhandled,
            parts.reader.registry.problem,
            parts.core.problem,
            lists.last_unhandled,
            parts.intake.problem,
            parts.key.problem(datetime.fromtimestamp(self._clock(), UTC)),
            parts.publisher.problem,
            parts.seen.problem,
            parts.held.problem,
            parts.held.displaced.problem,
            "; ".join(parts.enrolment.problems) if parts.enrolment is not None else "",
            parts.tokens.ending,
        )
        return (one for one in found if one)


LOSS_LOOK_S: Final = 60.0
"""How often it is looked whether the registry's topic has lost everything while it is followed."""


class _Kept(NamedTuple):
    is_closed: bool


class AccessDaemon:
    """One region's daemon. `run` until `stop` is set."""

    def __init__(self, settings: AccessSettings, clock: Callable[[], float] = time.time) -> None:
        """Raises OSError, IdentityError, SettingsError."""
        self._settings, self._clock = settings, clock
        self.metrics = metrics = AccessMetrics(map(devices_topic, settings.registry.tenants))
        self._files = files = BrokerFiles(settings.broker, settings.region, settings.gateways)
        self._own = own = OwnList(settings.authority, files.lists)
        issued, root = self._made_issued(), x509.load_pem_x509_certificate(own.folder.root_pem)
        reading, operators = settings.registry, settings.registry.followed()
        key, guard = AccessKey(reading, settings.region, operators), files.open_guard()
        logs = BrokerLogs(settings, guard)
        self._seen = SeenEntries(own.folder.folder / SEEN_FILE)
        registry, self._watch = DeviceRegistry(_keep, reading.max_devices, clock), self._made_watch()
        self._operators, check_signed = operators, None if operators is None else operators.check_signed
        displaced = Displaced(lambda tenant: self._reader.is_current(tenant))  # noqa: PLW0108 - it is made below
        self._held = held = HeldEntries(registry, self._seen, displaced, check_signed)
        self._publisher = AccessPublisher(reading, settings.region, key, displaced, held.message)
        core = AccessCore(own.issuer, lambda name: (kept := registry.get(name)) is not None and not kept.is_closed)
        self._enrolment, intake = self._made_enrolment(key), ListIntake(core, own, root, metrics, clock)
        self._loop = AccessLoop(
            core,
            StepRunner(
                files, guard, self._publisher, metrics, own_list=own, before_reload=logs.end_sessions, clock=clock
            ),
            intake,
            issued,
            metrics,
            settling=Settling(settings.settle_ms / 1000),
            looks=SessionLooks(settings.look_after_s),
            enrolment=self._enrolment,
            may_begin=lambda: self._watch.is_good,
            on_tick=lambda: self.report.make(),  # noqa: PLW0108 - it is made of the loop
            clock=clock,
        )
        self._begin(core)
        self._reader = self._registry_reader(registry, check_signed)
        self._lists = CompactedTopicReader(reading.service_url, reading.access, LISTS_TOPIC, self._loop.put)
        self._threads = (self._reader, self._lists, self._publisher, self._watch)
        self.report = AccessReport(
            ReportedParts(
                region=settings.region,
                files=files,
                core=core,
                loop=self._loop,
                reader=self._reader,
                lists=self._lists,
                intake=intake,
                issued=issued,
                operators=operators,
                key=key,
                publisher=self._publisher,
                seen=self._seen,
                held=held,
                clock_watch=self._watch,
                tokens=TokenWatch([reading.access], clock),
                enrolment=self._enrolment,
                logs=logs,
                metrics=metrics,
            ),
            clock,
        )

    def _made_watch(self) -> ClockWatch:
        return ClockWatch(self._settings.registry.admin_url, self._settings.registry.access)

    def _made_issued(self) -> IssuedReader:
        # By a clock that was compared: what is put away is on no list after a start.
        is_compared = self._settings.registry.admin_url is not None
        return IssuedReader(self._own.folder, self._clock, lambda: is_compared and not self._watch.problem)

    def _made_enrolment(self, key: AccessKey) -> RegionEnrolment | None:
        if self._settings.enrolment is None:
            return None
        return RegionEnrolment(self._settings, self._own.folder, key, self._clock, doubt=self._doubt)

    def _registry_reader(
        self, registry: DeviceRegistry[_Kept], check_signed: CheckSigned | None
    ) -> RegistryReader[_Kept]:
        return RegistryReader(
            self._settings.registry.service_url,
            self._settings.registry.access,
            registry,
            tenants=self._settings.registry.tenants,
            check_signed=check_signed,
            on_begin=self._held.on_begin,
            starts_anew=self._look,
            loss_look_s=LOSS_LOOK_S,
            on_message=self._on_entry,
            on_standing=self._on_standing,
        )

    def _begin(self, core: AccessCore) -> None:
        """What is on disk holds until the topics are read: the lists as the broker has them, and what was signed."""
        now_s = self._clock()
        for one in self._files.lists.values():
            core.on_list(one, now_s)
        # The first of them, and which ones there are: the others are read between steps.
        self._loop.read_issued(now_s)
        if self._own.current is not None:
            core.on_own_list(self._own.current, now_s)

    def prepare(self) -> None:
        """Make the files that the brokers need to start: where they are missing, and their configuration as it is now.

        Raises OSError.
        """
        write_broker_conf(self._settings)
        if not self._settings.broker.rules_file.exists():
            self._files.write_rules(frozenset())
        # With one by another key the broker starts, and refuses whatever our authority has signed.
        if not self._own.is_ours:
            own = self._own.update(None, datetime.fromtimestamp(self._clock(), UTC))
            others = [one for issuer, one in self._files.lists.items() if issuer != own.issuer]
            self._files.write_lists([own, *others])
        if self._enrolment is not None:
            self._enrolment.prepare()

    def run(self, stop: Event) -> None:
        """Serve until `stop` is set. Raises AddressTaken, ClockSetBack, ThreadEnded."""
        # First, because the broker may be waiting for its files.
        self.prepare()
        with self._serve() as server, self._seen:
            self._restore()
            for thread in self._threads:
                thread.start()
            try:
                while not stop.is_set():
                    self._loop.turn()
                    if not all(thread.is_running for thread in self._threads):
                        raise ThreadEnded("a thread of the access daemon ended")
                    if self._enrolment is not None and self._enrolment.has_ended:
                        raise ThreadEnded("the thread that enrols devices ended")
                    if not server.is_serving:
                        raise ThreadEnded("the thread that serves the status ended")
            finally:
                if self._enrolment is not None:
                    self._enrolment.close()
                # What stays is right: a device that was closed stays closed without us.
                for thread in self._threads:
                    thread.close()

    def _restore(self) -> None:
        for publication in self._held.restore():
            self._loop.take(publication)
            if self._enrolment is not None:
                self._enrolment.take(publication)

    def _look(self) -> bool:
        """Whether the registry is to be read again; asked by its reader."""
        for publication in self._held.restore_late():
            self._hear(publication)
        is_other = self._operators is not None and self._operators.look()
        if is_other:
            for publication in self._held.look_at_doubtful():
                self._hear(publication)
        return self._seen.take_missed() or is_other

    def _on_standing(self, tenant: str, standing: TopicStanding) -> None:
        self._held.on_standing(tenant, standing)
        self._loop.put(self._reader.standing)

    def _doubt(self, name: str) -> str:
        """Why no certificate is signed for a device now."""
        return self._held.doubt(name) if self._watch.is_good else self._watch.problem

    def _on_entry(self, message: TopicMessage, became: BecameOfMessage) -> None:
        if isinstance(became, Taken):
            self._hear(became.publication)
        elif isinstance(became, EntryRefused):
            if self._enrolment is not None:
                self._enrolment.refuse(message.properties.get(PROPERTY, ""), str(became))
            self._publisher.refuse(message.properties.get(PROPERTY, ""), became.reason, message.published_ms / 1000)
        # Last: no session waits for a disk.
        self._held.take(message, became)

    def _hear(self, publication: DevicePublication) -> None:
        # Before the loop hears of it: who is locked out gets no certificate meanwhile.
        if self._enrolment is not None:
            self._enrolment.take(publication)
        self._loop.put(publication)

    def _serve(self) -> StatusServer:
        where = self._settings.status
        routes = {
            "/metrics": lambda: metrics_answer(self.metrics.registry),
            "/status": lambda: json_answer(self.report.status.model_dump_json(indent=2)),
            "/health": lambda: json_answer(
                self.report.status.model_dump_json(indent=2), is_good=self.report.status.healthy
            ),
        }
        try:
            return StatusServer(where.host, where.port, routes)
        except OSError as error:
            raise AddressTaken(f"{where.host}:{where.port}: {error.strerror}; change status.port") from error


def _keep(publication: DevicePublication, _: TopicMessage) -> _Kept:
    return _Kept(not publication.entry.may_connect)
