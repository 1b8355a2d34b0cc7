"""Certificates for devices: enrolment with a claim, once, and renewal. Pure, except for the authority's folder.

    request ──▶ checked ──▶ signed and recorded ──▶ entry published ──▶ read back ──▶ answer
                   └──▶ refusal                          (PublishEntry)   (on_persisted)  (SendAnswer)

A certificate is sent only when the registry has its serial, so every certificate can be revoked. After a kill between
two steps either nothing was given, or the registry has it, and the same key gets the same certificate again. One region
enrols a device, and one access daemon works for a region, so "once" can be decided here.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import structlog

from gateway.access.registry_cache import RegistryCache
from waybill.daemon.backoff import TokenBucket
from waybill.identity.authority import CLOCK_SKEW, CertificateRequest, Issued, read_request
from waybill.identity.authority_folder import AuthorityFolder
from waybill.identity.claims import is_token_id
from waybill.identity.enrolment import (
    EnrolmentAnswer,
    EnrolmentGranted,
    EnrolmentRefused,
    EnrolmentRequest,
    RefusedBecause,
    decode_enrolment_request,
    encode_enrolment_answer,
)
from waybill.identity.errors import EnrolmentUnreadable, IdentityError, RequestFault, RequestRefused
from waybill.identity.names import DeviceName, PrincipalKind, PrincipalName, parse_name, principal
from waybill.identity.registry import DeviceChange, DeviceEntry, DeviceState, EnrolledCertificate, enrol, renew
from waybill.record import FACTORY_MOUNT

# Rate limits of certificate requests, by sender and in total.

REQUESTS_PER_S, BURST = 50.0, 200
"""Rate of all requests; each costs a signature and a message to Pulsar."""
TENANT_REQUESTS_PER_S, TENANT_BURST = 10.0, 50
"""Rate of requests for one tenant's devices. Requests with unknown claims share the rate of tenant ""."""
SENDER_INTERVAL_S, SENDER_BURST = 5.0, 5
"""Rate of one sender; some requests may come at once, because answers may be lost."""
MAX_SENDERS = 10_000


class EnrolmentRates:
    """Each sender and each tenant has its own rate, so that a flood does not delay others."""

    def __init__(self) -> None:
        self._all = TokenBucket(REQUESTS_PER_S, BURST)
        self._senders: OrderedDict[str, TokenBucket] = OrderedDict()
        # Bounded: only operators put tenants into the registry.
        self._tenants: dict[str, TokenBucket] = {}

    def try_sender(self, sender: str, now_s: float) -> bool:
        bucket = self._senders.pop(sender, None) or TokenBucket(1 / SENDER_INTERVAL_S, SENDER_BURST)
        # Reinserted at the end, so that the longest silent sender is forgotten first.
        self._senders[sender] = bucket
        if len(self._senders) > MAX_SENDERS:
            self._senders.popitem(last=False)
        return bucket.try_take(now_s)

    def try_tenant(self, tenant: str, now_s: float) -> bool:
        """Whether a request is handled now. `tenant`: owner of the requested device, "" if unknown."""
        bucket = self._tenants.setdefault(tenant, TokenBucket(TENANT_REQUESTS_PER_S, TENANT_BURST))
        return bucket.try_take(now_s) and self._all.try_take(now_s)


# Open one-time tokens.

REPEAT_WITHIN: Final = timedelta(minutes=10)
"""How long a key gets its certificate again, because the device asks again after a lost answer."""
_KEPT: Final = timedelta(hours=1)
"""How long an ended token is remembered, in case the clock is set back."""


class _Open(NamedTuple):
    user: str
    password_hash: str
    until: datetime | None


class OpenTokens:
    """The open one-time tokens of a region's devices. One thread adds entries, any may read."""

    def __init__(self, region: str) -> None:
        self._region = region
        self._lock = threading.Lock()
        self._open: dict[str, _Open] = {}

    def __len__(self) -> int:
        return len(self._open)

    def take(self, entry: DeviceEntry, now: datetime) -> bool:
        """Use a new entry; whether the set of tokens changed."""
        found = _open_of(entry, self._region)
        if found is not None and found.until is not None and found.until + _KEPT <= now:
            found = None
        with self._lock:
            former = self._open.pop(entry.name, None)
            if found is not None:
                self._open[entry.name] = found
        return found != former

    def passwords(self, now: datetime) -> dict[str, str]:
        """The password hashes that the enrolment broker accepts now, by user name."""
        with self._lock:
            for name in [name for name, one in self._open.items() if one.until and one.until + _KEPT <= now]:
                del self._open[name]
            return {one.user: one.password_hash for one in self._open.values() if one.until is None or now < one.until}


def _open_of(entry: DeviceEntry, region: str) -> _Open | None:
    """The token of an entry with its end; None: it may not log in.

    A used token stays open for a while, because the device may ask for a lost answer again.
    """
    claim = entry.claim
    if claim is None or claim.password_hash is None or entry.region != region:
        return None
    user = principal(PrincipalKind.CLAIM, claim.id)
    if entry.state is DeviceState.EXPECTED:
        return _Open(user, claim.password_hash, claim.until)
    # A device with a second certificate has renewed its first one.
    if entry.state is DeviceState.ACTIVE and len(entry.certificates) == 1:
        return _Open(user, claim.password_hash, entry.changed_at + REPEAT_WITHIN)
    return None


MAX_VALID_CERTIFICATES = 8
"""Of one device; all of them are on the revocation list when the device is revoked."""
MAX_PENDING = 1000
"""Entries on their way to Pulsar. Beyond that senders are told to ask again."""
_LOG = structlog.get_logger("access")


class PublishEntry(NamedTuple):
    """Publish this entry until Pulsar has it, read it back, then call `on_persisted`.

    If the registry's reader does not accept it, call `on_not_taken`.
    """

    entry: DeviceEntry


class SendAnswer(NamedTuple):
    """Publish these bytes on the sender's answer topic, at the broker of the request."""

    sender: str
    payload: bytes


EnrolmentEffect = PublishEntry | SendAnswer


class _Asked(NamedTuple):
    sender: str
    message: EnrolmentRequest
    wanted: CertificateRequest
    now: datetime
    is_factory: bool

    @property
    def is_claim(self) -> bool:
        return "@" in self.sender

    @property
    def is_at_its_door(self) -> bool:
        """Whether a token came by password and a serial by a factory certificate, which may have any name."""
        return is_token_id(self.sender.partition("@")[2]) is not self.is_factory

    def is_for(self, issued: Issued) -> bool:
        """Whether this certificate is for the requested key."""
        return bool(issued.certificate.public_key() == self.wanted.public_key)


@dataclass(slots=True)
class _Pending:
    entry: DeviceEntry
    issued: Issued
    sender: str
    nonce: str

    def is_in(self, entry: DeviceEntry) -> bool:
        return any(int(one.serial, 16) == self.issued.serial for one in entry.certificates)


class _Refuse(Exception):
    def __init__(self, reason: RefusedBecause, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail


@dataclass(slots=True)
class EnrolmentCore:
    """Requests in, effects out, to be executed in order. Used by one thread.

    `outcomes` counts requests: `enrolled`, `renewed`, `repeated`, `unanswered`, or the reason of the refusal.
    """

    region: str
    lifetime: timedelta
    """Of a certificate."""
    devices: RegistryCache
    signer: AuthorityFolder
    rates: EnrolmentRates
    check_right: Callable[[DeviceEntry, datetime], None]
    """Raises SignatureRefused for an entry that no reader of the registry would take from us."""
    outcomes: Counter[str] = field(default_factory=Counter)
    _pending: dict[str, _Pending] = field(default_factory=dict)

    def on_request(
        self, sender: str, payload: bytes, *, now: datetime, now_s: float, is_factory: bool = False
    ) -> list[EnrolmentEffect]:
        """A request came. `sender`: the name that the broker checked. `now_s`: a monotonic clock.

        `is_factory`: it came through the listener for factory certificates, whose authority may sign any name.
        """
        nonce = ""
        try:
            # The same name at another listener is another sender.
            self._bound(self.rates.try_sender(f"{FACTORY_MOUNT}{sender}" if is_factory else sender, now_s))
            try:
                request = decode_enrolment_request(payload)
                nonce = request.nonce
                asked = _Asked(sender, request, read_request(request.csr), now, is_factory)
            except (EnrolmentUnreadable, RequestRefused):
                self._bound(self.rates.try_tenant("", now_s))
                raise
            self._bound(self.rates.try_tenant(self._tenant_of(asked), now_s))
            name = parse_name(sender)
            if isinstance(name, DeviceName):
                return self._renewed(asked)
            if isinstance(name, PrincipalName) and name.kind is PrincipalKind.CLAIM:
                return self._enrolled(name.name, asked)
            raise _Refuse(RefusedBecause.UNKNOWN_CLAIM, f"{sender!r:.80} is neither a device nor a claim")
        except EnrolmentUnreadable as error:
            return self._refused(sender, error.nonce, RefusedBecause.UNREADABLE, str(error))
        except RequestRefused as error:
            is_name = error.reason is RequestFault.WRONG_NAME
            reason = RefusedBecause.OTHER_NAME if is_name else RefusedBecause.BAD_REQUEST
            return self._refused(sender, nonce, reason, str(error))
        except _Refuse as refuse:
            return self._refused(sender, nonce, refuse.reason, refuse.detail)
        except (IdentityError, OSError) as error:
            return self._unavailable(sender, nonce, str(error))

    def on_persisted(self, name: str) -> list[EnrolmentEffect]:
        """The published entry of `tenant/device`, or a later one, was read back."""
        pending = self._pending.pop(name, None)
        if pending is None:
            return []
        entry = self._entry(name)
        # An operator may have changed the device meanwhile, and the stricter entry wins.
        if entry is None or entry.state is not DeviceState.ACTIVE:
            detail = f"{name} is {'unknown' if entry is None else entry.state}"
            return self._refused(pending.sender, pending.nonce, RefusedBecause.NOT_ACTIVE, detail)
        if not pending.is_in(entry):
            detail = f"{name} was changed at the same moment: ask again"
            return self._refused(pending.sender, pending.nonce, RefusedBecause.UNAVAILABLE, detail)
        self.outcomes["enrolled" if "@" in pending.sender else "renewed"] += 1
        return [_grant(pending.sender, pending.nonce, pending.issued)]

    def on_not_taken(self, name: str, why: str) -> list[EnrolmentEffect]:
        """The registry does not have the published entry, so its certificate is not sent."""
        pending = self._pending.pop(name, None)
        return [] if pending is None else self._unavailable(pending.sender, pending.nonce, why)

    def _enrolled(self, claim_id: str, asked: _Asked) -> list[EnrolmentEffect]:
        if not asked.is_at_its_door:
            detail = "a token's claim needs the token as password, a serial's claim a factory certificate"
            raise _Refuse(RefusedBecause.UNKNOWN_CLAIM, detail)
        # By the requested name: several entries may name one claim.
        name = asked.wanted.common_name
        entry = self._entry(name)
        if entry is None or entry.claim is None or entry.claim.id != claim_id:
            raise _Refuse(
                RefusedBecause.UNKNOWN_CLAIM, f"{name!r:.80} is not expected with this claim: `waybill device expect`"
            )
        self._check_place(entry, asked)
        if self._is_on_its_way(entry, asked):
            return []
        if entry.state is DeviceState.ACTIVE:
            # Only the certificate of the claim, not a renewed one.
            return self._repeated(entry, entry.certificates[:1], asked, RefusedBecause.CLAIM_USED)
        if entry.state is not DeviceState.EXPECTED:
            raise _Refuse(RefusedBecause.NOT_ACTIVE, f"{entry.name} is {entry.state}")
        ends = entry.claim.until
        if ends is not None and asked.now >= ends:
            detail = f"the claim ended at {ends:%Y-%m-%d %H:%M} UTC: `waybill device expect` makes another"
            raise _Refuse(RefusedBecause.CLAIM_EXPIRED, detail)
        return self._issue(entry, asked)

    def _renewed(self, asked: _Asked) -> list[EnrolmentEffect]:
        name = asked.sender
        entry = self._entry(name)
        if entry is None or entry.state is not DeviceState.ACTIVE:
            raise _Refuse(RefusedBecause.NOT_ACTIVE, f"{name} is {'unknown' if entry is None else entry.state}")
        self._check_place(entry, asked)
        if self._is_on_its_way(entry, asked):
            return []
        # A new certificate for an old key would extend the life of a copied key.
        if any(asked.is_for(issued) for issued in self._issued(entry.certificates)):
            return self._repeated(entry, entry.certificates, asked, RefusedBecause.OLD_KEY)
        valid = sum(one.not_after > asked.now for one in entry.certificates)
        if valid >= MAX_VALID_CERTIFICATES:
            raise _Refuse(RefusedBecause.TOO_MANY, f"{name} has {valid} valid certificates, and may have no more")
        return self._issue(entry, asked)

    def _entry(self, name: str) -> DeviceEntry | None:
        found = self.devices.publication(name)
        return None if found is None else found.entry

    def _bound(self, is_within: bool) -> None:
        if not is_within:
            raise _Refuse(RefusedBecause.TOO_OFTEN, "ask again later")

    def _tenant_of(self, asked: _Asked) -> str:
        """The tenant whose rate a request uses: of the sending device, or of the device whose entry has the shown
        claim.

        Several entries may name one claim; each request counts for its own tenant only.
        """
        name = asked.wanted.common_name if asked.is_claim else asked.sender
        entry = self._entry(name)
        is_its_own = not asked.is_claim or (asked.is_at_its_door and _has_claim(entry, asked.sender))
        return entry.tenant if entry is not None and is_its_own else ""

    def _check_place(self, entry: DeviceEntry, asked: _Asked) -> None:
        if asked.wanted.common_name != entry.name:
            raise _Refuse(RefusedBecause.OTHER_NAME, f"the request is for {asked.wanted.common_name!r:.80}")
        if entry.region != self.region:
            raise _Refuse(RefusedBecause.OTHER_REGION, f"{entry.name} is enrolled and renewed by {entry.region}")

    def _is_on_its_way(self, entry: DeviceEntry, asked: _Asked) -> bool:
        """Whether the certificate for this key waits for the registry. Refuses a second key meanwhile."""
        pending = self._pending.get(entry.name)
        if pending is None:
            return False
        if pending.sender != asked.sender or not asked.is_for(pending.issued):
            reason = RefusedBecause.CLAIM_USED if asked.is_claim else RefusedBecause.TOO_OFTEN
            raise _Refuse(reason, f"a certificate for {entry.name} is being made for another key")
        # The device accepts only the answer to its last request.
        pending.nonce = asked.message.nonce
        self.outcomes["unanswered"] += 1
        return True

    def _repeated(
        self,
        entry: DeviceEntry,
        certificates: tuple[EnrolledCertificate, ...],
        asked: _Asked,
        otherwise: RefusedBecause,
    ) -> list[EnrolmentEffect]:
        for issued in self._issued(certificates):
            signed_at = issued.certificate.not_valid_before_utc + CLOCK_SKEW
            if asked.is_for(issued) and asked.now < signed_at + REPEAT_WITHIN:
                self.outcomes["repeated"] += 1
                return [_grant(asked.sender, asked.message.nonce, issued)]
        raise _Refuse(otherwise, f"{entry.name} already has the certificate of this claim or key")

    def _issued(self, certificates: tuple[EnrolledCertificate, ...]) -> Iterator[Issued]:
        """The certificates of an entry that this region's authority signed."""
        for one in certificates:
            issued = self.signer.recorded(int(one.serial, 16)) if one.issuer == self.signer.authority.name else None
            if issued is not None:
                yield issued

    def _issue(self, entry: DeviceEntry, asked: _Asked) -> list[EnrolmentEffect]:
        if len(self._pending) >= MAX_PENDING:
            raise _Refuse(RefusedBecause.TOO_OFTEN, "too many wait for the registry: ask again later")
        sender, message, now, issuer = asked.sender, asked.message, asked.now, self.signer.authority.name
        change = DeviceChange(now, f"access@{self.region}", f"asked by {sender}")
        become = enrol if entry.state is DeviceState.EXPECTED else renew
        # Before signing, check that readers would accept such an entry from us.
        like = EnrolledCertificate(issuer=issuer, serial="1", not_after=now + self.lifetime)
        self.check_right(become(entry, like, change), now)
        issued = self.signer.device(message.csr, entry.tenant, entry.device, now=now, lifetime=self.lifetime)
        certificate = EnrolledCertificate(issuer=issuer, serial=f"{issued.serial:x}", not_after=issued.not_after)
        changed = become(entry, certificate, change)
        self._pending[entry.name] = _Pending(changed, issued, sender, message.nonce)
        return [PublishEntry(changed)]

    def _unavailable(self, sender: str, nonce: str, why: str) -> list[EnrolmentEffect]:
        # The sender does not learn the reason.
        _LOG.error("a certificate cannot be issued", sender=sender, error=why)
        return self._refused(sender, nonce, RefusedBecause.UNAVAILABLE, "no certificate can be issued now")

    def _refused(self, sender: str, nonce: str, reason: RefusedBecause, detail: str) -> list[EnrolmentEffect]:
        self.outcomes[reason] += 1
        _LOG.warning("a request for a certificate is refused", sender=sender, reason=reason, detail=detail)
        return [_answer(sender, EnrolmentRefused(nonce, reason, detail))]


def _has_claim(entry: DeviceEntry | None, sender: str) -> bool:
    return entry is not None and entry.claim is not None and sender == principal(PrincipalKind.CLAIM, entry.claim.id)


def _grant(sender: str, nonce: str, issued: Issued) -> SendAnswer:
    return _answer(sender, EnrolmentGranted(nonce, issued.chain_pem))


def _answer(sender: str, answer: EnrolmentAnswer) -> SendAnswer:
    return SendAnswer(sender, encode_enrolment_answer(answer))
