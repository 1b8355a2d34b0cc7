"""The enrolment of a region, put together: what the registry says, the service that answers, and its broker's files."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from gateway.access.access_key import AccessKey
from gateway.access.broker import drawn_secret
from gateway.access.broker_process import BrokerProcess, reload_broker, running_broker
from gateway.access.config import AccessSettings
from gateway.access.enrolment import EnrolmentDesk, EnrolmentRules, RefusedRequest
from gateway.access.enrolment_broker import enrolment_rules, name_at_enrolment
from gateway.access.enrolment_publisher import EnrolmentPublisher
from gateway.access.enrolment_rates import EnrolmentRates
from gateway.access.enrolment_service import EnrolmentDoors, EnrolmentService
from gateway.access.entry_book import EntryBook
from gateway.access.open_tokens import OpenTokens
from gateway.errors import last_line
from waybill.daemon.durable_file import replace_durably
from waybill.identity.authority_folder import AuthorityFolder
from waybill.identity.claims import broker_password, is_broker_password, password_file
from waybill.identity.errors import IdentityError
from waybill.identity.names import PrincipalKind, principal
from waybill.identity.registry import DeviceEntry
from waybill.identity.registry_messages import DevicePublication
from waybill.identity.registry_publisher import RegistryPublisher
from waybill.settings import read_file

__all__ = ["RegionEnrolment"]

PASSWORDS_EVERY_S = 60.0
"""Tokens end by the clock, without a change of the registry."""
PASSWORDS_AT_MOST_EVERY_S = 0.1
_RETRY_S = 0.5
_READABLE_BY_GROUP = 0o640


class RegionEnrolment:
    """`take` is called by the registry's reader, the rest by the daemon's loop. `start` after the registry was read.

    Raises OSError.
    """

    def __init__(
        self,
        daemon: AccessSettings,
        authority: AuthorityFolder,
        key: AccessKey,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        doubt: Callable[[str], str] = lambda _: "",
    ) -> None:
        """`clock`: by which tokens end; `monotonic`: by which what is to be done waits, however the former is set.

        `doubt`: why nothing is to be made of the entry of a device now; "" if there is no reason.
        """
        assert daemon.enrolment is not None
        region, registry, settings = daemon.region, daemon.registry, daemon.enrolment
        self._settings, self._clock, self._monotonic = settings, clock, monotonic
        self._secret = drawn_secret(settings.secret_file)
        self._name, self._key, self._doubt = name_at_enrolment(region, self._secret), key, doubt
        self._book, self._tokens = EntryBook(region), OpenTokens(region)
        rules = EnrolmentRules(
            region=region, issuer=authority.authority.name, lifetime=timedelta(days=settings.certificate_days)
        )
        self._desk = EnrolmentDesk(rules, self._book, authority, EnrolmentRates(settings.rates), self._check)
        own = {"username": self._name, "password_file": settings.secret_file}
        doors = EnrolmentDoors(
            name=principal(PrincipalKind.ACCESS, region),
            claims=settings.claims.model_copy(update=own),
            devices=settings.devices,
        )
        publisher = RegistryPublisher(registry.service_url, registry.access, sign=key.sign_entry, clock=clock)
        self._publisher = EnrolmentPublisher(publisher, self._book, monotonic)
        self.topics_held = publisher.topics_held
        """How often another producer had the topic of an entry for itself, by topic."""
        self._service = EnrolmentService(self._desk, doors, self._publisher.publish, self._publisher.is_taken)
        self._is_started = self._is_changed = False
        self._next_s = self._due_s = monotonic()
        self._reloaded: BrokerProcess | None = None
        self._files_problem = ""
        self._not_taken: dict[str, str] = {}

    @property
    def outcomes(self) -> Counter[str]:
        """What became of the requests, see EnrolmentDesk."""
        return self._desk.outcomes.copy()

    @property
    def refusals(self) -> list[RefusedRequest]:
        """The last requests that were refused, the newest one last."""
        return list(self._desk.refusals)

    @property
    def problems(self) -> list[str]:
        """What is wrong now; nothing before `start`."""
        if not self._is_started:
            return []
        found = [*self._not_taken.values()][:1]
        return [f"enrolment: {one}" for one in (*found, self._files_problem, *self._service.problems) if one]

    @property
    def has_ended(self) -> bool:
        """Whether its thread ended by itself."""
        return self._is_started and not self._service.is_running

    def prepare(self) -> None:
        """Make the files without which its broker does not start. Raises OSError."""
        rules = enrolment_rules(self._name).encode()
        place = self._settings.broker
        if not place.rules_file.exists() or place.rules_file.read_bytes() != rules:
            replace_durably(place.rules_file, rules, mode=_READABLE_BY_GROUP)
        # Of tokens it has those of before, until the registry was read.
        if not self._hash_in_file():
            self._write_passwords(password_file({self._name: self._new_hash()}))

    def take(self, publication: DevicePublication) -> None:
        """An entry that holds from now on. What it fails at is a problem, and keeps no other from being taken."""
        name = publication.entry.name
        try:
            self._book.take(publication.entry, publication.warrant)
            # Of one that was used long ago nothing changes: no scan, and no file, for its sake.
            if self._tokens.take(publication.entry, self._now()):
                self._is_changed = True
        except Exception as error:  # noqa: BLE001 - the entries of the others are to be known
            self._not_taken[name] = f"{name} is not known here: {last_line(error)}"
        else:
            self._not_taken.pop(name, None)
        self._publisher.saw(publication.publication_id)

    def refuse(self, publication_id: str, why: str) -> None:
        """The registry's reader does not take this publication."""
        self._publisher.refuse(publication_id, why)

    def start(self) -> None:
        """Begin to answer, once; the registry was read to its end."""
        if not self._is_started:
            self._is_started = self._is_changed = True
            self._service.start()

    def close(self) -> None:
        """End; who waits for an answer asks again."""
        if self._is_started:
            self._service.close()
        self._publisher.close()

    def turn(self) -> None:
        """Have the broker take the tokens that are open now; what fails is a problem, and is done again."""
        now_s = self._monotonic()
        # A registry that is not read to its end may be without tokens that are open.
        if not self._is_started or now_s < self._next_s or not (self._is_changed or now_s >= self._due_s):
            return
        self._next_s = now_s + PASSWORDS_AT_MOST_EVERY_S
        # Before it is done: what changes meanwhile is another change.
        self._is_changed = False
        try:
            self._have_tokens_taken()
        except Exception as error:  # noqa: BLE001 - nobody else waits for it: who is to be locked out is so elsewhere
            self._files_problem, self._next_s = last_line(error), now_s + _RETRY_S
            self._is_changed, self._reloaded = True, None
        else:
            self._files_problem, self._due_s = "", now_s + PASSWORDS_EVERY_S

    def _have_tokens_taken(self) -> None:
        own_hash = self._hash_in_file() or self._new_hash()
        # A factory certificate has no password: its listener knows it by mutual TLS.
        changed = self._write_passwords(password_file({**self._tokens.passwords(self._now()), self._name: own_hash}))
        if changed or self._reloaded != running_broker(self._settings.broker):
            self._reloaded = reload_broker(self._settings.broker)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock(), UTC)

    def _check(self, entry: DeviceEntry, now: datetime) -> None:
        # What would be published comes behind an entry that may hold against it, and compaction keeps the last.
        if why := self._doubt(entry.name):
            raise IdentityError(why)
        self._key.check(entry, self._book.warrant(entry.name), now)

    def _hash_in_file(self) -> str:
        """Our own password's hash that the broker knows; "" if it knows none."""
        try:
            lines = read_file(self._settings.broker.password_file).decode("utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return ""
        found = [line.removeprefix(f"{self._name}:") for line in lines if line.startswith(f"{self._name}:")]
        return found[0] if found and is_broker_password(self._secret, found[0]) else ""

    def _new_hash(self) -> str:
        return broker_password(self._secret, secrets.token_bytes(12))

    def _write_passwords(self, content: bytes) -> bool:
        path = self._settings.broker.password_file
        if path.exists() and path.read_bytes() == content:
            return False
        replace_durably(path, content, mode=_READABLE_BY_GROUP)
        return True
