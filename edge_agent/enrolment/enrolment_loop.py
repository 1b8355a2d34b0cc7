"""The thread that enrols the device and renews its certificate.

It imports the certificate library, so an agent without `[enrolment]` does not import this module.
"""

from __future__ import annotations

import os
import random
import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import structlog

from edge_agent.config import AgentSettings, DeviceSettings, EnrolmentSettings
from edge_agent.enrolment.certificates import CertificateFile, CertificateFolder, certificate_folder
from edge_agent.errors import AgentError, EnrolmentFailed, LinkError
from edge_agent.inspection import is_running
from edge_agent.uplink.mqtt_session import MqttSession, claim_refusal
from waybill.daemon.backoff import Backoff
from waybill.daemon.tls import TlsSettings
from waybill.identity.authority import KeyPair, common_name, is_chain_to, make_request, read_certificates
from waybill.identity.claims import token_user
from waybill.identity.enrolment import (
    MAX_ENROLMENT_BYTES,
    EnrolmentGranted,
    EnrolmentRefused,
    EnrolmentRequest,
    decode_enrolment_answer,
    encode_enrolment_request,
)
from waybill.identity.errors import EnrolmentUnreadable, IdentityError
from waybill.mqtt.broker_settings import BrokerSettings, read_password
from waybill.mqtt.mqtt_client import MqttMessage, MqttSessionOptions
from waybill.record import EnrolmentChannel, enrolment_topic
from waybill.settings import read_file

# `edge-agent enrol`: one attempt.


def enrol_once(settings: AgentSettings) -> str:
    """Enrols the device; returns the message for the user. Raises EnrolmentFailed; OSError if the certificate cannot be
    stored.
    """
    folder = certificate_folder(settings)
    if settings.enrolment is None or folder is None:
        raise EnrolmentFailed("the settings have no [enrolment]: install this device's certificate by hand")
    if (held := folder.newest()) is not None and time.time() < held.not_after_s:
        return f"{settings.device.tenant}/{settings.device.id} has a certificate: {_described(held)}"
    if is_running(settings):
        raise EnrolmentFailed("a running agent enrols by itself: `edge-agent status` shows its progress")
    os.umask(0o077)
    parts = EnrolmentParts(
        folder=folder, ask_region=lambda _request: None, on_certificate=lambda: None, random=random.Random()
    )
    held = EnrolmentLoop(settings.enrolment, settings.device, parts).enrol()
    return f"{settings.device.tenant}/{settings.device.id} is enrolled: {_described(held)}"


def _described(held: CertificateFile) -> str:
    ends = datetime.fromtimestamp(held.not_after_s, UTC)
    return f"serial {held.serial:x}, valid until {ends:%Y-%m-%d %H:%M} UTC"


# Certificate requests and answers.

NONCE_BYTES = 16


class CertificateRequests:
    """The requests of one device. All requests have the same key until a certificate is issued."""

    def __init__(self, device: DeviceSettings, folder: CertificateFolder, ca: Path) -> None:
        """`ca`: the file of trusted authorities; certificates of others are refused."""
        self._name = f"{device.tenant}/{device.id}"
        self._folder, self._ca = folder, ca
        self._nonce = ""

    def make(self) -> bytes:
        """The encoded request; its key is on disk before this returns. Raises EnrolmentFailed, OSError."""
        key = self._key()
        if key is None:
            key = KeyPair.generate()
            self._folder.store_requested_key(key.private_pem())
        self._nonce = secrets.token_hex(NONCE_BYTES)
        return encode_enrolment_request(EnrolmentRequest(self._nonce, make_request(key, self._name)))

    def is_answered_by(self, payload: bytes) -> bool:
        try:
            return self._nonce != "" and decode_enrolment_answer(payload).nonce == self._nonce
        except EnrolmentUnreadable as error:
            return self._nonce != "" and error.nonce == self._nonce

    def take(self, payload: bytes) -> CertificateFile:
        """Stores and returns the certificate in the answer. Raises EnrolmentFailed, OSError."""
        try:
            answer = decode_enrolment_answer(payload)
        except EnrolmentUnreadable as error:
            raise EnrolmentFailed(f"the answer cannot be read: {error}") from error
        self._nonce = ""
        if isinstance(answer, EnrolmentRefused):
            # Otherwise the key is kept: an earlier answer may have been a certificate for it.
            if answer.reason.takes_another_key:
                self._folder.forget_requested_key()
            raise EnrolmentFailed(f"refused ({answer.reason}): {answer.detail}")
        return self._keep(answer)

    def _keep(self, answer: EnrolmentGranted) -> CertificateFile:
        key = self._key()
        try:
            certificate, *issuers = read_certificates(answer.chain_pem)
            name = common_name(certificate.subject)
        except (IdentityError, ValueError) as error:
            raise EnrolmentFailed(f"the answer holds no certificate: {error}") from error
        if name != self._name:
            raise EnrolmentFailed(f"the certificate is for {name!r:.80}, not for {self._name}")
        if key is None or certificate.public_key() != key.public:
            raise EnrolmentFailed("the certificate is for another key than the requested one")
        try:
            trusted = read_certificates(read_file(self._ca))
        except IdentityError as error:
            raise EnrolmentFailed(f"{self._ca}: {error}") from error
        # An attacker's answer must not replace the request with a useless certificate.
        if not is_chain_to([certificate, *issuers], trusted):
            raise EnrolmentFailed(f"the certificate was not signed by an authority in {self._ca}")
        self._folder.store_next(key.private_pem(), answer.chain_pem)
        held = self._folder.next()
        if held is None:
            raise EnrolmentFailed("the certificate's times cannot be read")
        return held

    def _key(self) -> KeyPair | None:
        pem = self._folder.requested_key()
        try:
            return None if pem is None else KeyPair.from_pem(pem)
        except IdentityError:
            return None  # a damaged key counts as missing


# One session with a region's enrolment broker.

PACKET_BYTES = MAX_ENROLMENT_BYTES + 512
POLL_S = 1.0
CONNECT_TIMEOUT_S = 10.0


def claim_user(settings: EnrolmentSettings) -> str:
    """The user name at the enrolment broker, `claim@...`. Raises EnrolmentFailed."""
    try:
        if settings.token_file is not None:
            return token_user(read_password(settings.token_file))
        assert settings.certificate is not None  # the settings' own check: there is a token or a certificate
        return common_name(read_certificates(settings.certificate.read_bytes())[0].subject)
    except (OSError, ValueError, IdentityError) as error:
        raise EnrolmentFailed(f"no claim to present: {settings.token_file or settings.certificate}: {error}") from error


def exchange(
    settings: EnrolmentSettings,
    request: bytes,
    is_answer: Callable[[bytes], bool],
    *,
    is_stopping: Callable[[], bool] = lambda: False,
) -> bytes:
    """Sends a request to the enrolment broker and returns the answer. Raises EnrolmentFailed."""
    user = claim_user(settings)
    answers: list[bytes] = []
    broker = BrokerSettings(
        host=settings.host,
        port=settings.port,
        tls=TlsSettings(ca=settings.ca, certificate=settings.certificate, key=settings.key),
        username=None if settings.token_file is None else user,
        password_file=settings.token_file,
        connect_timeout_s=CONNECT_TIMEOUT_S,
    )

    def keep(message: MqttMessage) -> None:
        if is_answer(message.payload):
            answers.append(message.payload)

    session = MqttSession(broker, MqttSessionOptions(client_id=user, max_packet_bytes=PACKET_BYTES), keep)
    try:
        session.open()
        session.subscribe(enrolment_topic(user, EnrolmentChannel.ANSWER))
        deadline_s = time.monotonic() + settings.answer_timeout_s
        is_sent = False
        # Only after the subscription: an earlier answer would be lost.
        while not answers:
            if session.is_subscribed and not is_sent:
                session.publish(enrolment_topic(user, EnrolmentChannel.REQUEST), request)
                is_sent = True
            remaining_s = deadline_s - time.monotonic()
            if remaining_s <= 0 or is_stopping():
                raise EnrolmentFailed(f"{settings.host}:{settings.port}: no answer from the region's access daemon")
            session.poll(min(POLL_S, remaining_s))
            for _, reason in session.take_publish_results():
                if reason.is_failure:
                    raise EnrolmentFailed(f"{settings.host}:{settings.port}: the broker refuses the request: {reason}")
        return answers[0]
    except LinkError as error:
        raise EnrolmentFailed("; ".join(filter(None, (str(error), claim_refusal(str(error)))))) from error
    finally:
        session.close()


log = structlog.get_logger("edge_agent.enrolment")

LOOK_EVERY_S = 3600.0
"""The longest time between two checks: the clock may be set meanwhile."""
RENEW_AFTER = 2 / 3
"""A certificate is renewed after this share of its life."""
JITTER_SHARE = 0.05
"""Share of a certificate's life that spreads renewals of devices enrolled at the same time."""
MAX_ANSWERS = 8
Exchange = Callable[..., bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrolmentParts:
    """`ask_region` sends a request over the uplink. `on_certificate` is called after an enrolment. `clock`: the wall
    clock.
    """

    folder: CertificateFolder
    ask_region: Callable[[bytes], None]
    on_certificate: Callable[[], None]
    random: Random
    clock: Callable[[], float] = time.time
    exchange: Exchange = exchange


class EnrolmentLoop:
    """Runs in one thread (`run`). Other threads use `on_answer`, `stop` and the attributes."""

    def __init__(self, settings: EnrolmentSettings, device: DeviceSettings, parts: EnrolmentParts) -> None:
        self._settings, self._parts, self._name = settings, parts, f"{device.tenant}/{device.id}"
        self._requests = CertificateRequests(device, parts.folder, settings.ca)
        self._backoff = Backoff(settings.backoff_first_s, settings.backoff_max_s, parts.random.random)
        # Drawn once: a new draw at each check would favour early renewals.
        self._renew_share = RENEW_AFTER + JITTER_SHARE * parts.random.random()
        self._answers: deque[bytes] = deque(maxlen=MAX_ANSWERS)
        self._wakeup = threading.Event()
        self._is_stopping = False
        self.outcomes: Counter[str] = Counter()
        """Attempts by outcome: `enrolled`, `renewed`, `failed`."""
        self.problem = ""
        """Why the last attempt failed; "" after a success."""

    def run(self) -> None:
        while not self._is_stopping:
            wait_s = self.step()
            self._wakeup.wait(wait_s)
            self._wakeup.clear()

    def stop(self) -> None:
        self._is_stopping = True
        self._wakeup.set()

    def on_answer(self, payload: bytes) -> None:
        """Takes the region's answer to a request over the uplink."""
        self._answers.append(payload)
        self._wakeup.set()

    def step(self) -> float:
        """Enrols or renews if it is due; returns the seconds until the next step."""
        held, now_s = self._parts.folder.newest(), self._parts.clock()
        due_s = 0.0 if held is None else self._due_s(held)
        if due_s > now_s:
            return min(due_s - now_s, LOOK_EVERY_S)
        is_usable = held is not None and now_s < held.not_after_s
        try:
            self._attempt(is_renewal=is_usable)
        except (AgentError, OSError) as error:
            return self._failed(str(error))
        except Exception as error:  # noqa: BLE001 - records wait for a certificate: no mistake ends the looking for one
            return self._failed(repr(error))
        # A very short-lived certificate could be due again at once.
        return self._settings.backoff_first_s

    def enrol(self) -> CertificateFile:
        """Tries once to enrol with the claim. Raises AgentError, OSError."""
        request = self._requests.make()
        try:
            answer = self._parts.exchange(
                self._settings, request, self._requests.is_answered_by, is_stopping=lambda: self._is_stopping
            )
            return self._requests.take(answer)
        except EnrolmentFailed as error:
            # The name helps to find a wrong tenant in the settings.
            raise EnrolmentFailed(f"{self._name} is not enrolled: {error}") from error

    def _attempt(self, *, is_renewal: bool) -> None:
        held = self._renew() if is_renewal else self.enrol()
        outcome = "renewed" if is_renewal else "enrolled"
        self.outcomes[outcome] += 1
        self.problem = ""
        self._backoff.reset()
        log.info(outcome, serial=f"{held.serial:x}", ends_s=int(held.not_after_s))
        if not is_renewal:
            self._parts.on_certificate()

    def _renew(self) -> CertificateFile:
        request = self._requests.make()
        # Older answers belong to abandoned requests.
        self._answers.clear()
        self._parts.ask_region(request)
        until_s = time.monotonic() + self._settings.answer_timeout_s
        while not self._is_stopping and (remaining_s := until_s - time.monotonic()) > 0:
            while self._answers:
                answer = self._answers.popleft()
                if self._requests.is_answered_by(answer):
                    return self._requests.take(answer)
            self._wakeup.wait(remaining_s)
            self._wakeup.clear()
        raise EnrolmentFailed("the region did not answer the request to renew")

    def _due_s(self, held: CertificateFile) -> float:
        """When to renew the certificate, by the wall clock."""
        return held.not_before_s + self._renew_share * held.life_s

    def _failed(self, problem: str) -> float:
        self.outcomes["failed"] += 1
        self.problem = problem
        wait_s = self._backoff.take_delay_s()
        log.warning("no certificate was given", problem=problem, again_in_s=round(wait_s, 1))
        return wait_s
