"""Last fixes as they arrive: from the topics of batches of the first cluster, else from new commits of the lake."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from cloud_jobs.config import CloudSettings
from cloud_jobs.errors import CloudError
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.erasures import Erasures
from console.fixes import AHEAD, FIRST, LastFix, LastFixes, LastFixReader, fix_columns, fix_numbers, usable_positions
from console.health.bounded import plain
from waybill.record import DEVICE_PATTERN, Kind

_POLL_S: Final = 2.0
_FIRST_US: Final = round(FIRST.timestamp() * 1_000_000)
_FIRST_ROOM: Final = 1024


class FixStore:
    """The newest fix of each device. A device keeps its number. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fixes: dict[TenantDevice, LastFix] = {}
        self._numbers: dict[TenantDevice, int] = {}
        self._devices: list[TenantDevice] = []
        self._columns = np.zeros((5, _FIRST_ROOM), np.int32)
        self._erasures = Erasures([])
        self.version = 0

    def put(self, fixes: Sequence[LastFix]) -> bool:
        """Takes fixes that are newer than those known; whether any was."""
        is_new = False
        with self._lock:
            for fix in fixes:
                held = self._fixes.get(fix.of_device)
                if (held is None or fix.time > held.time) and not (self._erasures and fix.is_in(self._erasures)):
                    self._place(fix)
                    is_new = True
            self.version += is_new
        return is_new

    def erase(self, erasures: Erasures) -> None:
        """Removes the fixes that the erasures of the lake include, and takes none of them any more."""
        with self._lock:
            if erasures is self._erasures:
                return
            self._erasures = erasures
            for device in [device for device, fix in self._fixes.items() if fix.is_in(erasures)]:
                del self._fixes[device]
                # a browser takes no fix of 1970
                self._columns[:, self._numbers[device]] = 0
                self.version += 1

    def _place(self, fix: LastFix) -> None:
        device = fix.of_device
        at = self._numbers.setdefault(device, len(self._devices))
        if at == len(self._devices):
            self._devices.append(device)
            if at == self._columns.shape[1]:
                self._columns = np.concatenate([self._columns, np.zeros_like(self._columns)], axis=1)
        self._fixes[device] = fix
        self._columns[:, at] = fix_numbers(fix)

    def newer(self, known: LastFixes) -> LastFixes:
        """`known` with the fixes of this store that are newer."""
        with self._lock:
            fresh = {
                device: fix
                for device, fix in self._fixes.items()
                if (held := known.of.get(device)) is None or fix.time > held.time
            }
        return replace(known, of=known.of | fresh) if fresh else known

    def devices(self, begin: int = 0) -> list[TenantDevice]:
        """The devices from a number on, in the order in which they became known."""
        with self._lock:
            return self._devices[begin:]

    def encode(self, numbers: NDArray[np.int64]) -> dict[str, str]:
        """The fixes of devices by their numbers, as columns for a browser."""
        with self._lock:
            return fix_columns(self._columns[:, numbers])


class TopicFollower(Protocol):
    """A thread that reads a topic from its end on; of Pulsar, or of a test."""

    @property
    def standing(self) -> Any: ...
    def start(self) -> None: ...
    def close(self) -> None: ...


OpenTopics = Callable[[CloudSettings, Callable[[str | None, Any], None]], Sequence[TopicFollower]]
"""Makes the readers of the topics of batches; each calls with the only tenant of its topic and a message."""


@dataclass(frozen=True, slots=True)
class LiveStatus:
    """Where live fixes come from. `source`: `topics` or `lake`. `heard_at`: when the last new fix came, by our clock.

    `problem`: why the topics cannot be read.
    """

    source: str
    cluster: str
    heard_at: datetime | None
    problem: str


class LiveFeed:
    """Follows the topics once it is started, and the lake while somebody looks. `start` once, `close` at the end."""

    def __init__(
        self,
        settings: CloudSettings,
        last_fixes: LastFixReader,
        now: Callable[[], datetime],
        open_topics: OpenTopics | None = None,
    ) -> None:
        self._settings = settings
        self._last_fixes = last_fixes
        self._now = now
        self._open_topics = open_topics
        self._followers: Sequence[TopicFollower] = ()
        self._registry: Any = None
        self._stop = threading.Event()
        self._poll: threading.Thread | None = None
        self._unsealer: Any = None
        self._polled: Mapping[TenantDevice, LastFix] = {}
        self._lake_problem = ""
        self._heard_at: datetime | None = None
        self.store = FixStore()
        self.registry_problem = "" if settings.console.live else "console.live is off"
        self.watchers = 0
        self.malformed = 0

    def start(self) -> None:
        """Starts to follow the topics, if the settings say so, and the lake."""
        self._poll = threading.Thread(target=self._poll_lake, name="polls the lake", daemon=True)
        self._poll.start()
        opens = self._open_topics or (pulsar_topics if self._settings.console.live else None)
        if opens is not None:
            self._followers = opens(self._settings, self.take)
        if self._open_topics is None and self._settings.console.live:
            self._registry = registry_reader(self._settings)
            self._registry.start()
        for one in self._followers:
            one.start()

    def close(self) -> None:
        """Ends the threads, each within a bounded time."""
        from waybill.daemon.process import close_within  # noqa: PLC0415 - a page of a command follows nothing

        self._stop.set()
        registry = [] if self._registry is None else [self._registry.close]
        close_within([*(one.close for one in self._followers), *registry])
        if self._poll is not None:
            self._poll.join(_POLL_S)

    def fixes(self, now: datetime) -> LastFixes:
        """The last fixes that the lake and the topics have. Raises LakeError, StoreUnavailable."""
        known = self._last_fixes.read(now)
        self.store.erase(self._last_fixes.erasures)
        return self.store.newer(known)

    def status(self) -> LiveStatus:
        cluster = self._settings.clusters[0].name
        standings = [one.standing for one in self._followers]
        current = [one for one in standings if one.is_current]
        problem = next((one.problem for one in standings if not one.is_current and one.problem), "")
        return LiveStatus(
            "topics" if current else "lake", cluster, self._heard_at, plain(problem or self._lake_problem)
        )

    def registry_state(self, device: TenantDevice) -> str | None:
        """The state of a device in the registry, `not registered`, or None: the registry is not read."""
        registry = self._registry
        if registry is None or not registry.was_read(device.tenant):
            return None
        entry = registry.registry.get(f"{device.tenant}/{device.device}")
        return "not registered" if entry is None else str(entry.state)

    def registry_entry(self, device: TenantDevice) -> Any | None:
        """The entry of a device that is in force; None: there is none, or it is not known."""
        registry = self._registry
        return None if registry is None else registry.registry.get(f"{device.tenant}/{device.device}")

    def take(self, only_tenant: str | None, message: Any) -> None:
        """Takes a message of a topic of batches; `only_tenant`: the only one that may write there."""
        fix = self._fix_of(only_tenant, message)
        if fix is not None and self.store.put([fix]):
            self._heard_at = self._now()

    def _fix_of(self, only_tenant: str | None, message: Any) -> LastFix | None:
        """The newest usable position of a batch; None: it has none, or is no valid batch."""
        from waybill.identity.errors import Unsealable  # noqa: PLC0415 - as in close
        from waybill.identity.sealing import is_sealed  # noqa: PLC0415
        from waybill.record import WireError  # noqa: PLC0415
        from waybill.record.columns import decode_columns  # noqa: PLC0415

        tenant, region = message.properties.get("tenant", ""), message.properties.get("region", "")
        if not (DEVICE_PATTERN.fullmatch(tenant) and DEVICE_PATTERN.fullmatch(region)) or only_tenant not in {
            None,
            tenant,
        }:
            self.malformed += 1
            return None
        try:
            body = message.body
            columns = decode_columns(self._opener().unseal(body, tenant, region) if is_sealed(body) else body)
        except (WireError, Unsealable):
            self.malformed += 1
            return None
        now = self._now()
        before_us = round((now + AHEAD).timestamp() * 1_000_000)
        good = (
            (columns.kind == Kind.POSITION)
            & (columns.device_time_us < before_us)
            & (columns.device_time_us >= _FIRST_US)
        )
        good &= usable_positions(columns.latitude, columns.longitude, self._settings.tracks)
        if not good.any():
            return None
        at = int(np.flatnonzero(good)[np.argmax(columns.device_time_us[good])])
        return LastFix(
            tenant,
            columns.header.device,
            region,
            datetime.fromtimestamp(int(columns.device_time_us[at]) / 1_000_000, UTC),
            now,
            float(columns.latitude[at]),
            float(columns.longitude[at]),
            *(_known(column[at]) for column in (columns.speed_mps, columns.heading_deg, columns.accuracy_m)),
        )

    def _opener(self) -> Any:
        from waybill.identity.sealing import Unsealer  # noqa: PLC0415 - as in close

        if self._unsealer is None:
            self._unsealer = Unsealer.of_folder(self._settings.ingest.sealing_keys)
        return self._unsealer

    def _poll_lake(self) -> None:
        # the first page then need not look back; what cannot be read is said by the page
        with suppress(CloudError):
            self._last_fixes.read(self._now())
        while not self._stop.wait(_POLL_S):
            self._leave_refused_registry()
            if self.watchers:
                self.poll()

    def _leave_refused_registry(self) -> None:
        """Ends the reader of a registry that our role may not read: waiting does not help."""
        registry = self._registry
        if registry is None or any(map(registry.was_read, self._settings.tenants)):
            return
        if registry.standing.refusal is not None:
            self._registry, self.registry_problem = None, plain(registry.standing.problem)
            registry.close()

    def poll(self) -> None:
        """Takes the fixes that the lake has got since the last time."""
        try:
            of = self._last_fixes.read(self._now()).of
        except CloudError as error:
            self._lake_problem = str(error)
            return
        self._lake_problem = ""
        self.store.erase(self._last_fixes.erasures)
        before, self._polled = self._polled, of
        if before is not of and self.store.put([fix for device, fix in of.items() if before.get(device) is not fix]):
            self._heard_at = self._now() if before else self._heard_at


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def pulsar_topics(settings: CloudSettings, take: Callable[[str | None, Any], None]) -> Sequence[TopicFollower]:
    """Readers of the topics of batches in the first cluster, from their ends on, without a subscription."""
    from waybill.pulsar.compacted_topic import CompactedTopicReader, SharedClient  # noqa: PLC0415

    url = settings.clusters[0].service_url
    client = SharedClient(url, settings.access)

    def follower(topic: str, tenant: str | None) -> TopicFollower:
        return CompactedTopicReader(
            url,
            settings.access,
            topic,
            lambda message: take(tenant, message),
            is_compacted=False,
            from_end=True,
            client=client,
        )

    return [follower(topic, tenant) for topic, tenant in settings.batch_topics.items()]


def registry_reader(settings: CloudSettings) -> Any:
    """A reader of the device registry in the first cluster."""
    from waybill.identity.registry_messages import RegistryTrust  # noqa: PLC0415
    from waybill.identity.registry_topic import DeviceRegistry, RegistryReader  # noqa: PLC0415

    trusted = settings.reference.operators
    trust = None if trusted is None else RegistryTrust(operators=trusted).check_signed()
    return RegistryReader(
        settings.clusters[0].service_url,
        settings.access,
        DeviceRegistry(lambda publication, _: publication.entry),
        tenants=settings.tenants,
        check_signed=trust,
    )
