"""The access daemon, assembled: the registry and the lists in, its broker's files and sessions out."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import Final

from cryptography import x509

from gateway.access.access_key import AccessKey
from gateway.access.broker import BrokerFiles, StepRunner, write_if_changed
from gateway.access.broker_log import BrokerLogs
from gateway.access.clock_watch import ClockWatch
from gateway.access.config import AccessSettings, ClaimBroker, GuardedBroker
from gateway.access.core import AccessCore
from gateway.access.enrolment_service import RegionEnrolment
from gateway.access.issued import IssuedReader
from gateway.access.loop import AccessLoop, ListIntake
from gateway.access.publisher import AccessPublisher
from gateway.access.registry_cache import CACHE_FILE, RegistryCache
from gateway.access.revocation import LISTS_TOPIC, OwnList
from gateway.access.status import AccessMetrics, AccessStatus
from waybill.daemon.errors import ThreadEnded
from waybill.daemon.service import serve_status
from waybill.identity.broker_conf import (
    broker_access_lines,
    broker_lines,
    broker_log_lines,
    conf_text,
    device_listener_lines,
    enrolment_broker_lines,
)
from waybill.identity.registry_messages import (
    DevicePublication,
    EntryRefused,
    devices_topic,
)
from waybill.identity.registry_topic import DeviceRegistry, EntryInForce, EntryResult, RegistryReader
from waybill.identity.signatures import ID_PROPERTY
from waybill.pulsar.compacted_topic import CompactedTopicReader, TopicMessage, TopicStanding
from waybill.pulsar.pulsar_client import TokenWatch

# Configuration files of a region's brokers, from the daemon's settings.


def write_broker_conf(settings: AccessSettings) -> list[Path]:
    """Write the configuration of each broker that has `server`; returns the changed files. Raises OSError."""
    changed = []
    for file, lines in _files(settings):
        content = conf_text(["# written by fleet-gateway access, from its settings", *lines]).encode()
        if write_if_changed(file, content):
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


LOSS_LOOK_S: Final = 60.0
"""How often the reader checks whether the registry's topic has lost everything."""


class AccessDaemon:
    def __init__(self, settings: AccessSettings, clock: Callable[[], float] = time.time) -> None:
        """Raises OSError, IdentityError, SettingsError."""
        self._settings, self._clock = settings, clock
        self.metrics = metrics = AccessMetrics(map(devices_topic, settings.registry.tenants))
        self._files = files = BrokerFiles(settings.broker, settings.region, settings.gateways)
        self._own = own = OwnList(settings.authority, files.lists)
        reading, self._operators = settings.registry, settings.registry.followed()
        self._watch = ClockWatch(reading.admin_url, reading.access)
        # Only with a compared clock, because certificates that are moved away are on no list after a start.
        is_compared = reading.admin_url is not None
        self._issued = IssuedReader(own.folder, clock, lambda: is_compared and not self._watch.problem)
        self._key, guard = AccessKey(reading, settings.region, self._operators), files.open_guard()
        self._logs, self._tokens = BrokerLogs(settings, guard), TokenWatch([reading.access], clock)
        self._registry: DeviceRegistry[bool] = DeviceRegistry(_may_connect, reading.max_devices, clock)
        check_signed = None if self._operators is None else self._operators.check_signed
        self._cache = RegistryCache(
            own.folder.folder / CACHE_FILE,
            self._registry,
            check_signed,
            lambda tenant: self._reader.is_current(tenant),  # noqa: PLW0108 - it is made below
        )
        self._publisher = AccessPublisher(reading, settings.region, self._key, self._cache)
        self._core = core = AccessCore(own.issuer, lambda name: self._registry.get(name) is True)
        self._enrolment = self._made_enrolment()
        root = x509.load_pem_x509_certificate(own.folder.root_pem)
        self._intake = ListIntake(core, own, root)
        before_reload = self._logs.end_sessions
        self._loop = AccessLoop(
            core,
            StepRunner(files, guard, self._publisher, metrics, own_list=own, before_reload=before_reload, clock=clock),
            self._intake,
            self._issued,
            metrics,
            enrolment=self._enrolment,
            may_begin=lambda: self._watch.is_good,
            on_tick=self._report,
            clock=clock,
        )
        self._begin(core)
        self._reader = RegistryReader(
            reading.service_url,
            reading.access,
            self._registry,
            tenants=reading.tenants,
            check_signed=check_signed,
            on_begin=self._cache.on_begin,
            starts_anew=self._look,
            loss_look_s=LOSS_LOOK_S,
            on_message=self._on_entry,
            on_standing=self._on_standing,
        )
        self._lists = CompactedTopicReader(reading.service_url, reading.access, LISTS_TOPIC, self._loop.put)
        self._threads = (self._reader, self._lists, self._publisher, self._watch)
        started_at = datetime.now(UTC).isoformat(timespec="seconds")
        self.status = AccessStatus(region=settings.region, pid=os.getpid(), started_at=started_at)

    def _made_enrolment(self) -> RegionEnrolment | None:
        if self._settings.enrolment is None:
            return None
        watch = self._watch
        return RegionEnrolment(
            self._settings,
            self._own.folder,
            self._key,
            self._clock,
            devices=self._cache,
            clock_problem=lambda: "" if watch.is_good else watch.problem,
        )

    def _begin(self, core: AccessCore) -> None:
        """Use the lists and certificates on disk until the topics are read."""
        now_s = self._clock()
        for one in self._files.lists.values():
            core.on_list(one, now_s)
        # Only the first ones; the others are read between steps.
        self._loop.read_issued(now_s)
        if self._own.current is not None:
            core.on_own_list(self._own.current, now_s)

    def prepare(self) -> None:
        """Create the missing files that the brokers need to start, and write their configuration. Raises OSError."""
        write_broker_conf(self._settings)
        if not self._settings.broker.rules_file.exists():
            self._files.write_rules(frozenset())
        # With a list by another key the broker starts, but refuses every certificate of our authority.
        if not self._own.is_ours:
            own = self._own.update(None, datetime.fromtimestamp(self._clock(), UTC))
            others = [one for issuer, one in self._files.lists.items() if issuer != own.issuer]
            self._files.write_lists([own, *others])
        if self._enrolment is not None:
            self._enrolment.prepare()

    def run(self, stop: Event) -> None:
        """Serve until `stop` is set. Raises AddressTaken, GatewayError, ThreadEnded, CacheUnavailable."""
        # First, because the broker may be waiting for its files.
        self.prepare()
        with (
            serve_status(self._settings.status, self.metrics.registry, lambda: self.status) as server,
            contextlib.closing(self._cache),
        ):
            for publication in self._cache.restore():
                self._loop.take(publication)
                if self._enrolment is not None:
                    self._enrolment.take(publication)
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
                # The broker's files stay right: a locked-out device stays locked out.
                for thread in self._threads:
                    thread.close()

    def _look(self) -> bool:
        """Whether the registry must be read again; its reader asks."""
        # Ask both: each may have something to do.
        is_other = self._operators is not None and self._operators.look()
        return self._cache.take_read_again() or is_other

    def _on_standing(self, tenant: str, standing: TopicStanding) -> None:
        self._cache.on_standing(tenant, standing)
        self._loop.put(self._reader.standing)

    def _on_entry(self, message: TopicMessage, became: EntryResult) -> None:
        if isinstance(became, EntryInForce):
            self._hear(became.publication)
        elif isinstance(became, EntryRefused):
            self._publisher.refuse(message.properties.get(ID_PROPERTY, ""), became.reason, message.published_ms / 1000)
        # Last, so that no session waits for the disk.
        self._cache.take(message, became)

    def _hear(self, publication: DevicePublication) -> None:
        try:
            # Before the loop, so that a locked-out device gets no certificate meanwhile.
            if self._enrolment is not None:
                self._enrolment.take(publication)
        finally:
            self._loop.put(publication)

    def _report(self) -> None:
        """Update status and metrics, each second."""
        self._logs.read()
        self._logs.end_sessions()
        problem, ends = next(self._problems(), ""), self._key.ends
        standing, registry, enrolment = self._reader.standing, self._registry, self._enrolment
        # From the broker's files, which say what the broker really has.
        lists = {one.issuer: one.next_update.timestamp() for one in self._files.lists.values()}
        self.status = self.status.model_copy(
            update={
                "healthy": not problem,
                "last_error": problem,
                "registry_current": standing.is_current,
                "registry_unreachable_since_s": standing.unreachable_since_s,
                "devices_known": len(registry),
                "devices_closed": self._core.closed_devices,
                "certificates_revoked": self._core.revoked_certificates,
                "rules_version": self._files.rules_version,
                "lists": lists,
                "key_ends_s": ends.timestamp() if ends is not None else None,
                "entries_refused_by": dict(registry.refused_by),
                "list_bytes": self._publisher.list_bytes,
                "devices_left_open": self._core.left_open,
                "topics_held": dict(self._publisher.topics_held + (enrolment.topics_held if enrolment else Counter())),
                "entries_published_again": self._cache.published_again,
                "last_entry_refused": registry.last_refused,
                "enrolments": dict(enrolment.outcomes) if enrolment else {},
                "connections_refused": self._logs.connections_refused,
                **self.metrics.counts,
            }
        )
        self.metrics.show(self.status)

    def _problems(self) -> Iterator[str]:
        """What is wrong now, the most important first."""
        standing, lists = self._reader.standing, self._lists.standing
        found = (
            self._loop.problem,
            self._tokens.ended,
            self._watch.problem,
            "" if standing.is_current else f"registry: {standing.problem}",
            "" if lists.is_current else f"revocation lists: {lists.problem}",
            self._operators.problem if self._operators is not None else "",
            self._loop.not_applied,
            self._issued.problem,
            standing.last_unhandled,
            self._registry.problem,
            self._core.problem,
            lists.last_unhandled,
            self._key.problem(datetime.fromtimestamp(self._clock(), UTC)),
            self._publisher.problem,
            self._cache.problem,
            "; ".join(self._enrolment.problems) if self._enrolment is not None else "",
            self._tokens.ending,
        )
        return (one for one in found if one)


def _may_connect(publication: DevicePublication, _: TopicMessage) -> bool:
    return publication.entry.may_connect
