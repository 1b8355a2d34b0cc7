"""The access daemon, put together: the registry and the lists in, its broker's files and sessions out."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from threading import Event
from typing import Final, NamedTuple

from cryptography import x509

from gateway.access.access_key import AccessKey
from gateway.access.apply import StepRunner
from gateway.access.broker import BrokerFiles
from gateway.access.broker_conf import write_broker_conf
from gateway.access.broker_logs import BrokerLogs
from gateway.access.clock_watch import ClockWatch
from gateway.access.config import AccessSettings
from gateway.access.core import AccessCore
from gateway.access.displaced import Displaced
from gateway.access.held_entries import HeldEntries
from gateway.access.issued import IssuedReader
from gateway.access.list_intake import ListIntake
from gateway.access.loop import AccessLoop
from gateway.access.metrics import AccessMetrics
from gateway.access.own_list import OwnList
from gateway.access.pacing import SessionLooks, Settling
from gateway.access.publisher import AccessPublisher
from gateway.access.region_enrolment import RegionEnrolment
from gateway.access.report import AccessReport, ReportedParts
from gateway.access.revocation import LISTS_TOPIC
from gateway.access.seen_entries import SEEN_FILE, SeenEntries
from gateway.errors import AddressTaken, ThreadEnded
from waybill.daemon.status_server import StatusServer, json_answer, metrics_answer
from waybill.identity.publication_id import PROPERTY
from waybill.identity.registry_messages import CheckSigned, DevicePublication, EntryRefused, devices_topic
from waybill.identity.registry_reader import BecameOfMessage, DeviceRegistry, RegistryReader, Taken
from waybill.pulsar.compacted_topic import CompactedTopicReader, TopicMessage, TopicStanding
from waybill.pulsar.token_watch import TokenWatch

__all__ = ["AccessDaemon"]


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
