"""The thread that keeps the device's certificate: enrols where there is none, renews before it ends."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import structlog

from edge_agent.config import DeviceSettings, EnrolmentSettings
from edge_agent.enrolment.certificate_folder import CertificateFolder, HeldCertificate
from edge_agent.enrolment.certificate_request import CertificateRequests
from edge_agent.enrolment.claim_exchange import exchange
from edge_agent.errors import AgentError, EnrolmentFailed
from edge_agent.link_advice import named
from waybill.daemon.backoff import Backoff

log = structlog.get_logger("edge_agent.enrolment")

LOOK_EVERY_S = 3600.0
"""A certificate is looked at this often: the clock may be set in between."""
JITTER_SHARE = 0.05
"""Of a certificate's life: devices that were enrolled in one hour do not renew in one."""
MAX_ANSWERS = 8
Exchange = Callable[..., bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrolmentParts:
    """What the loop works with. `ask_region` sends a request over the uplink, as soon as there is one.

    `on_certificate` hears that there is a certificate to connect with, where there was none. `clock` is the wall clock.
    """

    folder: CertificateFolder
    ask_region: Callable[[bytes], None]
    on_certificate: Callable[[], None]
    random: Random
    clock: Callable[[], float] = time.time
    exchange: Exchange = exchange


class EnrolmentLoop:
    """Runs in one thread (`run`); `on_answer`, `stop` and the attributes are for others. Nothing waits for it."""

    def __init__(self, settings: EnrolmentSettings, device: DeviceSettings, parts: EnrolmentParts) -> None:
        self._settings, self._parts, self._name = settings, parts, f"{device.tenant}/{device.id}"
        self._requests = CertificateRequests(device, parts.folder, settings.ca)
        self._backoff = Backoff(settings.backoff_first_s, settings.backoff_max_s, parts.random.random)
        # Drawn once: a moment that is drawn anew with each look would come early for everybody.
        self._renew_share = settings.renew_after + JITTER_SHARE * parts.random.random()
        self._answers: deque[bytes] = deque(maxlen=MAX_ANSWERS)
        self._wakeup = threading.Event()
        self._is_stopping = False
        self.outcomes: Counter[str] = Counter()
        """`enrolled`, `renewed` and `failed` attempts."""
        self.problem = ""
        """Why the last attempt failed; "" after one that did not."""

    def run(self) -> None:
        """Until `stop`. Whatever happens, it is tried again."""
        while not self._is_stopping:
            wait_s = self.step()
            self._wakeup.wait(wait_s)
            self._wakeup.clear()

    def stop(self) -> None:
        """Ends the thread soon."""
        self._is_stopping = True
        self._wakeup.set()

    def on_answer(self, payload: bytes) -> None:
        """The region answered over the uplink."""
        self._answers.append(payload)
        self._wakeup.set()

    def step(self) -> float:
        """Does what is due; seconds until there may be something again."""
        held, now_s = self._parts.folder.newest(), self._parts.clock()
        due_s = 0.0 if held is None else self._due_s(held)
        if due_s > now_s:
            return min(due_s - now_s, LOOK_EVERY_S)
        is_usable = held is not None and now_s < held.validity.not_after_s
        try:
            self._attempt(is_renewal=is_usable)
        except (AgentError, OSError) as error:
            return self._failed(str(error))
        except Exception as error:  # noqa: BLE001 - records wait for a certificate: no mistake ends the looking for one
            return self._failed(repr(error))
        # A certificate whose life is shorter than clocks may differ is due at once, again and again.
        return self._settings.backoff_first_s

    def enrol(self) -> HeldCertificate:
        """One attempt to be enrolled with the claim. Raises AgentError, OSError."""
        request = self._requests.make()
        try:
            answer = self._parts.exchange(
                self._settings, request, self._requests.is_answered_by, is_stopping=lambda: self._is_stopping
            )
            return self._requests.take(answer)
        except EnrolmentFailed as error:
            # A device of a tenant that its settings do not name is as unknown as one that nobody expects.
            raise EnrolmentFailed(f"{self._name} is not enrolled: {named(str(error), self._name)}") from error

    def _attempt(self, *, is_renewal: bool) -> None:
        held = self._renew() if is_renewal else self.enrol()
        outcome = "renewed" if is_renewal else "enrolled"
        self.outcomes[outcome] += 1
        self.problem = ""
        self._backoff.reset()
        log.info(outcome, serial=f"{held.validity.serial:x}", ends_s=int(held.validity.not_after_s))
        if not is_renewal:
            self._parts.on_certificate()

    def _renew(self) -> HeldCertificate:
        request = self._requests.make()
        # What is left there answered a question that was given up.
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

    def _due_s(self, held: HeldCertificate) -> float:
        """When it is renewed, or the device is enrolled anew, by the wall clock."""
        return held.validity.not_before_s + self._renew_share * held.validity.life_s

    def _failed(self, problem: str) -> float:
        self.outcomes["failed"] += 1
        self.problem = problem
        wait_s = self._backoff.take_delay_s()
        log.warning("no certificate was given", problem=problem, again_in_s=round(wait_s, 1))
        return wait_s
