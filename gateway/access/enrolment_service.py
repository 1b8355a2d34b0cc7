"""The enrolment of a region, assembled: the connections, the thread that answers, and the broker's files."""

from __future__ import annotations

import hashlib
import random
import select
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

import structlog
from paho.mqtt.client import Client
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from gateway.access.access_key import AccessKey
from gateway.access.broker import (
    BrokerProcess,
    drawn_secret,
    password_hash,
    reload_broker,
    running_broker,
    write_if_changed,
)
from gateway.access.config import AccessSettings
from gateway.access.enrolment import (
    EnrolmentCore,
    EnrolmentEffect,
    EnrolmentRates,
    OpenTokens,
    PublishEntry,
)
from gateway.access.registry_cache import RegistryCache
from gateway.errors import EntryNotTaken, last_line
from waybill.daemon.backoff import Backoff
from waybill.identity.authority_folder import AuthorityFolder
from waybill.identity.claims import password_file
from waybill.identity.enrolment import MAX_ENROLMENT_BYTES
from waybill.identity.errors import IdentityError
from waybill.identity.names import PrincipalKind, principal
from waybill.identity.registry import DeviceEntry
from waybill.identity.registry_messages import DevicePublication
from waybill.identity.registry_topic import RegistryPublisher, RegistryRefused
from waybill.mqtt.broker_settings import BrokerSettings
from waybill.mqtt.mqtt_client import MqttClient, MqttMessage, MqttSessionOptions
from waybill.record import (
    FACTORY_MOUNT,
    EnrolmentChannel,
    enrolment_filters,
    enrolment_requester,
    enrolment_rule,
    enrolment_topic,
)

# Access rules of the enrolment broker, which never change. Pure.

_NAME_DIGITS = 16


def name_at_enrolment(region: str, secret: str) -> str:
    """The daemon's user name at the enrolment broker, which only the owner of the secret can compute.

    A factory's authority may sign any name, so a known name could be forged there.
    """
    drawn = hashlib.sha256(b"name at the enrolment broker:" + secret.encode()).hexdigest()
    return principal(PrincipalKind.ACCESS, f"{region}-{drawn[:_NAME_DIGITS]}")


def enrolment_rules(name: str) -> str:
    """The rules file: each claim writes its own requests and reads their answers. `name`: the daemon's."""
    requests, _ = enrolment_filters(EnrolmentChannel.REQUEST)
    answers, _ = enrolment_filters(EnrolmentChannel.ANSWER)
    lines = [f"user {name}"]
    for mount in ("", FACTORY_MOUNT):
        lines += [f"topic read {mount}{requests}", f"topic write {mount}{answers}"]
    for mount in ("", FACTORY_MOUNT):
        lines += [f"pattern write {mount}{enrolment_rule(EnrolmentChannel.REQUEST)}"]
        lines += [f"pattern read {mount}{enrolment_rule(EnrolmentChannel.ANSWER)}"]
    return "\n".join(lines) + "\n"


# Publication of enrolments, read back before a certificate is issued.

READ_BACK_S: Final = 10.0


class EnrolmentPublisher:
    """Publishes entries and waits until they are read back. The registry's reader calls `saw`, the enrolment thread the
    rest.

    `devices`: what the reader has accepted.
    """

    def __init__(
        self, publisher: RegistryPublisher, devices: RegistryCache, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._publisher, self._devices, self._monotonic = publisher, devices, monotonic
        self._newest = ""
        self._given_up_s: dict[str, float] = {}

    def saw(self, publication_id: str) -> None:
        self._newest = max(self._newest, publication_id)

    def publish(self, entry: DeviceEntry) -> None:
        """Publish an entry with the operator's warrant for its device.

        Raises RegistryUnreachable while the cluster is away, EntryNotTaken where waiting does not help.
        """
        # After every id that was seen, whatever this clock says.
        self._publisher.newest = max(self._publisher.newest or "", self._newest) or None
        try:
            held = self._devices.publication(entry.name)
            self._publisher.publish(entry, "" if held is None else held.warrant)
        except RegistryRefused as error:
            # The device asks again; other tenants' devices do not wait for it.
            raise EntryNotTaken(str(error)) from error
        self._given_up_s[entry.name] = self._monotonic() + READ_BACK_S

    def is_taken(self, entry: DeviceEntry) -> bool:
        """Whether the entry, or a later one, was read back. Raises EntryNotTaken after `READ_BACK_S`."""
        try:
            held = self._devices.publication(entry.name)
        except IdentityError:
            held = None
        is_taken = held is not None and held.entry.version >= entry.version
        if not is_taken and self._monotonic() < self._given_up_s[entry.name]:
            return False
        del self._given_up_s[entry.name]
        if not is_taken:
            raise EntryNotTaken(
                f"{entry.name} was published and not read back within {READ_BACK_S:g} s: this daemon does not accept"
                " its own registry entry; see last_entry_refused in its status"
            )
        return True

    def close(self) -> None:
        self._publisher.close()


# Certificate requests from one broker: the enrolment broker or the devices' broker.

_PACKET_BYTES = MAX_ENROLMENT_BYTES + 1024
_RECEIVE_MAXIMUM = 100
_LOG = structlog.get_logger("access")


Answer = Callable[[str, bytes], None]
"""Publishes an answer for a sender, at the broker of its request. Without a connection it is dropped."""


class EnrolmentConnection:
    """A connection to one broker that reconnects. One thread drives it; `socket` is for select.

    It keeps no session: senders repeat requests that were lost while it was away.
    """

    def __init__(
        self,
        broker: BrokerSettings,
        name: str,
        topics: tuple[str, ...],
        on_request: Callable[[Answer, str, bytes, bool], None],
    ) -> None:
        self._broker, self._name, self._topics, self._on_request = broker, name, topics, on_request
        self._backoff = Backoff(broker.backoff_first_s, broker.backoff_max_s, random.random)
        self._client: MqttClient | None = None
        self._next_s = 0.0
        self.is_open = False
        self.problem = "not connected yet"

    @property
    def socket(self) -> Any:
        return None if self._client is None else self._client.socket()

    @property
    def wants_write(self) -> bool:
        return self._client is not None and self._client.has_outgoing

    def turn(self, now_s: float) -> None:
        """Connect when due, read what came, and send what waits."""
        if self.socket is None:
            self._lost(now_s)
            self._connect_due(now_s)
            return
        assert self._client is not None
        self._client.receive(self._receive)
        self._client.loop_misc()
        self._client.flush()

    def _answer(self, mount: str, sender: str, payload: bytes) -> None:
        # Not kept for later, because the device then asks with another nonce.
        if self._client is not None and self.is_open:
            self._client.publish_qos_1(f"{mount}{enrolment_topic(sender, EnrolmentChannel.ANSWER)}", payload)

    def close(self) -> None:
        if self._client is not None:
            self._client.disconnect()
            self._client.flush()
            self._client = None

    def _lost(self, now_s: float) -> None:
        if self._client is None:
            return
        self.problem = self._client.failure or self.problem or "connection lost"
        _LOG.warning("the connection for certificate requests is lost", broker=self._where, problem=self.problem)
        self._client, self.is_open = None, False
        self._next_s = now_s + self._backoff.take_delay_s()

    def _connect_due(self, now_s: float) -> None:
        if now_s < self._next_s:
            return
        try:
            options = MqttSessionOptions(
                client_id=self._name, receive_maximum=_RECEIVE_MAXIMUM, max_packet_bytes=_PACKET_BYTES
            )
            client = MqttClient(self._broker, options)
            client.on_connect, client.on_subscribe = self._on_connect, self._on_subscribe
            client.start()
            self._client = client
        except (OSError, ValueError) as error:
            self.problem = f"{self._where}: {error}"
            self._next_s = now_s + self._backoff.take_delay_s()

    @property
    def _where(self) -> str:
        return f"{self._broker.host}:{self._broker.port}"

    def _on_connect(self, client: Client, _data: Any, _flags: Any, reason: ReasonCode, _properties: Any) -> None:
        if reason.is_failure:
            self.problem = f"{self._where} refuses the connection: {reason}"
            return
        client.subscribe([(topic, SubscribeOptions(qos=1)) for topic in self._topics])

    def _on_subscribe(self, _c: Client, _data: Any, _mid: int, reasons: list[ReasonCode], _properties: Any) -> None:
        self.is_open = not any(reason.is_failure for reason in reasons)
        if self.is_open:
            self.problem = ""
            self._backoff.reset()
            _LOG.info("certificate requests are accepted", broker=self._where)

    def _receive(self, message: MqttMessage) -> None:
        assert self._client is not None
        # First, so that a message that cannot be handled does not come again.
        self._client.acknowledge(message.mid)
        mount = FACTORY_MOUNT if message.topic.startswith(FACTORY_MOUNT) else ""
        sender = enrolment_requester(message.topic.removeprefix(mount))
        if sender is not None:
            self._on_request(partial(self._answer, mount), sender, message.payload, bool(mount))


# The enrolment thread: requests of both brokers to the core, and its outputs in order.

_TURN_S = 0.2
_READ_BACK_TURN_S = 0.005
"""While an entry waits to be read back, which takes some milliseconds."""
_CLOSE_S = 3.0


class EnrolmentService:
    """Handles requests as they come. A request that waits for the registry does not delay others.

    `publish` is repeated until it returns. `is_taken` says whether the registry was read back with the entry. If either
    raises EntryNotTaken, the request is refused.
    """

    def __init__(
        self,
        core: EnrolmentCore,
        publish: Callable[[DeviceEntry], None],
        is_taken: Callable[[DeviceEntry], bool] = lambda _: True,
        *,
        name: str,
        claims: BrokerSettings,
        devices: BrokerSettings,
    ) -> None:
        """`claims`: the enrolment broker, with the user of these settings. `devices`: the region's broker, as
        `name`.
        """
        self._core, self._publish, self._is_taken = core, publish, is_taken
        # Bounded by the core's `MAX_PENDING`.
        self._published: list[tuple[Answer, DeviceEntry]] = []
        of_claims, of_devices = enrolment_filters(EnrolmentChannel.REQUEST)
        user, topics = claims.username or name, (of_claims, f"{FACTORY_MOUNT}{of_claims}")
        self._connections = (
            EnrolmentConnection(claims, user, topics, self._on_request),
            EnrolmentConnection(devices, name, (of_devices,), self._on_request),
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="enrolment", daemon=True)
        self.problem = ""
        """Why the registry does not take what was enrolled; "" while it does."""

    def start(self) -> None:
        """Begin. The registry must have been read to its end, so that earlier enrolments are known."""
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(_CLOSE_S)

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    @property
    def problems(self) -> list[str]:
        return [
            problem for problem in (self.problem, *(connection.problem for connection in self._connections)) if problem
        ]

    def _run(self) -> None:
        while not self._stop.is_set():
            sockets = [connection.socket for connection in self._connections if connection.socket is not None]
            writers = [
                connection.socket
                for connection in self._connections
                if connection.socket is not None and connection.wants_write
            ]
            # Wait for both brokers at once.
            wait_s = _READ_BACK_TURN_S if self._published else _TURN_S
            if sockets:
                select.select(sockets, writers, [], wait_s)
            else:
                self._stop.wait(wait_s)
            for connection in self._connections:
                connection.turn(time.monotonic())
            self._answer_taken()
        for connection in self._connections:
            connection.close()

    def _on_request(self, answer: Answer, sender: str, payload: bytes, is_factory: bool) -> None:
        try:
            now, now_s = datetime.now(UTC), time.monotonic()
            effects = self._core.on_request(sender, payload, now=now, now_s=now_s, is_factory=is_factory)
            self._perform(answer, effects)
        except Exception as error:  # noqa: BLE001 - one request must not end the enrolment of all others
            _LOG.error("a request for a certificate cannot be handled", sender=sender, problem=repr(error))

    def _perform(self, answer: Answer, effects: Sequence[EnrolmentEffect]) -> None:
        for effect in effects:
            if not isinstance(effect, PublishEntry):
                answer(effect.sender, effect.payload)
                continue
            try:
                if self._is_published(effect.entry):
                    self._published.append((answer, effect.entry))
            except EntryNotTaken as error:
                self._perform(answer, self._not_taken(effect.entry, error))

    def _answer_taken(self) -> None:
        waiting, self._published = self._published, []
        for answer, entry in waiting:
            try:
                self._perform(answer, self._read_back(answer, entry))
            except Exception as error:  # noqa: BLE001 - see `_on_request`
                _LOG.error("an enrolment cannot be answered", device=entry.name, problem=repr(error))

    def _read_back(self, answer: Answer, entry: DeviceEntry) -> list[EnrolmentEffect]:
        try:
            if not self._is_taken(entry):
                self._published.append((answer, entry))
                return []
        except EntryNotTaken as error:
            return self._not_taken(entry, error)
        self.problem = ""
        _LOG.info("certificate issued", device=entry.name, by=entry.reason, version=entry.version)
        return self._core.on_persisted(entry.name)

    def _not_taken(self, entry: DeviceEntry, error: EntryNotTaken) -> list[EnrolmentEffect]:
        self.problem = str(error)
        _LOG.error("no certificate is issued", device=entry.name, problem=self.problem)
        return self._core.on_not_taken(entry.name, self.problem)

    def _is_published(self, entry: DeviceEntry) -> bool:
        backoff = Backoff(0.2, 10.0, random.random)
        while not self._stop.is_set():
            try:
                self._publish(entry)
            except EntryNotTaken:
                raise
            except Exception as error:  # noqa: BLE001 - Pulsar's client raises many kinds; none of them is final
                self.problem = f"the registry does not accept {entry.name}: {error}"
                _LOG.warning("an enrolment waits for the registry", device=entry.name, problem=str(error))
                self._stop.wait(backoff.take_delay_s())
            else:
                self.problem = ""
                return True
        return False


PASSWORDS_EVERY_S = 60.0
"""Because tokens end by the clock, without a change of the registry."""
PASSWORDS_AT_MOST_EVERY_S = 0.1
_RETRY_S = 0.5


class RegionEnrolment:
    """The registry's reader calls `take`, the daemon's loop the rest; `start` after the registry was read. Raises
    OSError.
    """

    def __init__(
        self,
        daemon: AccessSettings,
        authority: AuthorityFolder,
        key: AccessKey,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        devices: RegistryCache,
        clock_problem: Callable[[], str] = lambda: "",
    ) -> None:
        """`clock`: for the end of tokens. `monotonic`: for delays. `devices`: the registry.

        `clock_problem`: why no certificate may be signed with this machine's clock; "" if it may.
        """
        assert daemon.enrolment is not None
        region, registry, settings = daemon.region, daemon.registry, daemon.enrolment
        self._settings, self._clock, self._monotonic = settings, clock, monotonic
        self._secret = drawn_secret(settings.secret_file)
        self._name, self._key, self._clock_problem = name_at_enrolment(region, self._secret), key, clock_problem
        self._devices, self._tokens = devices, OpenTokens(region)
        lifetime = timedelta(days=settings.certificate_days)
        self._core = EnrolmentCore(region, lifetime, devices, authority, EnrolmentRates(), self._check)
        publisher = RegistryPublisher(registry.service_url, registry.access, sign=key.sign_entry, clock=clock)
        self._publisher = EnrolmentPublisher(publisher, devices, monotonic)
        self.topics_held = publisher.topics_held
        """How often another producer had the topic of an entry for itself, by topic."""
        self._service = EnrolmentService(
            self._core,
            self._publisher.publish,
            self._publisher.is_taken,
            name=principal(PrincipalKind.ACCESS, region),
            claims=settings.claims.model_copy(update={"username": self._name, "password_file": settings.secret_file}),
            devices=settings.devices,
        )
        self._is_started = self._is_changed = False
        self._next_s = self._due_s = monotonic()
        self._reloaded: BrokerProcess | None = None
        self._files_problem = ""

    @property
    def outcomes(self) -> Counter[str]:
        return self._core.outcomes.copy()

    @property
    def problems(self) -> list[str]:
        """What is wrong now; nothing before `start`."""
        if not self._is_started:
            return []
        return [f"enrolment: {one}" for one in (self._files_problem, *self._service.problems) if one]

    @property
    def has_ended(self) -> bool:
        return self._is_started and not self._service.is_running

    def prepare(self) -> None:
        """Create the files without which its broker does not start. Raises OSError."""
        place = self._settings.broker
        write_if_changed(place.rules_file, enrolment_rules(self._name).encode())
        # Until the registry is read, the file keeps the earlier tokens.
        own_hash = self._own_hash()
        if not place.password_file.exists() or own_hash not in place.password_file.read_text(errors="replace"):
            write_if_changed(place.password_file, password_file({self._name: own_hash}))

    def take(self, publication: DevicePublication) -> None:
        """A registry publication was accepted."""
        # Entries without an open token change nothing, so no file is written for them.
        if self._tokens.take(publication.entry, self._now()):
            self._is_changed = True
        self._publisher.saw(publication.publication_id)

    def start(self) -> None:
        """Begin to answer, once, after the registry was read to its end."""
        if not self._is_started:
            self._is_started = self._is_changed = True
            self._service.start()

    def close(self) -> None:
        if self._is_started:
            self._service.close()
        self._publisher.close()

    def turn(self) -> None:
        """Give the open tokens to the broker. A failure is a problem and is repeated."""
        now_s = self._monotonic()
        # Before the registry is read to its end, open tokens may be missing.
        if not self._is_started or now_s < self._next_s or not (self._is_changed or now_s >= self._due_s):
            return
        self._next_s = now_s + PASSWORDS_AT_MOST_EVERY_S
        # Reset first, because changes may come meanwhile.
        self._is_changed = False
        try:
            self._have_tokens_taken()
        except Exception as error:  # noqa: BLE001 - nobody else waits for it: who is to be locked out is so elsewhere
            self._files_problem, self._next_s = last_line(error), now_s + _RETRY_S
            self._is_changed, self._reloaded = True, None
        else:
            self._files_problem, self._due_s = "", now_s + PASSWORDS_EVERY_S

    def _have_tokens_taken(self) -> None:
        # Factory certificates have no password: their listener uses mutual TLS.
        hashes = {**self._tokens.passwords(self._now()), self._name: self._own_hash()}
        changed = write_if_changed(self._settings.broker.password_file, password_file(hashes))
        if changed or self._reloaded != running_broker(self._settings.broker):
            self._reloaded = reload_broker(self._settings.broker)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock(), UTC)

    def _check(self, entry: DeviceEntry, now: datetime) -> None:
        if why := self._clock_problem():
            raise IdentityError(why)
        held = self._devices.publication(entry.name)
        self._key.check(entry, "" if held is None else held.warrant, now)

    def _own_hash(self) -> str:
        return password_hash(self._settings.broker.password_file, self._name, self._secret)
