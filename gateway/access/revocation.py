"""Revocation lists as regions exchange them, and which of them is in force.

A message is the issuer's certificate and its list, both in PEM, with the issuer's name as key. A list is accepted if
the root signed the certificate and the certificate signed the list. Of two lists of an issuer the later one is in
force.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from gateway.access.config import AuthorityPlace
from waybill.identity.authority import Authority, Revoked, common_name, read_certificates
from waybill.identity.authority import sign_revocation_list as sign
from waybill.identity.errors import IdentityError, NotAnAuthority

# The revocation list of the region's authority: signed again on changes and long before its end.


LIST_LIFE: Final = timedelta(days=30)
RENEW_AFTER: Final = timedelta(days=1)


class OwnList:
    """The newest list with the authority's name. `former`: the lists on disk, which the next one must follow.

    `is_ours`: the present key signed it. Otherwise only its number and serials are used, and a new list is due.
    """

    def __init__(self, place: AuthorityPlace, former: Mapping[str, RevocationList]) -> None:
        """Raises AuthorityMissing, AuthorityFolderError."""
        self.folder = place.open()
        self.current: RevocationList | None = None
        self.is_ours = False
        if (found := former.get(self.issuer)) is not None:
            self._keep(found)

    @property
    def issuer(self) -> str:
        return self.folder.authority.name

    def follow(self, other: RevocationList) -> bool:
        """Whether our next list must follow this published list of our name, because ours is not later.

        The disk was restored, or another daemon or a former authority has our name.
        """
        current = self.current
        must_follow = current is None or (other.pem != current.pem and not current.is_later(other))
        if must_follow:
            self._keep(other)
        return must_follow

    def is_due(self, now: datetime) -> bool:
        """Whether it is time for a new list, also with the same serials."""
        current = self.current if self.is_ours else None
        # A list of a clock that was ahead locks everybody out, so it is replaced when the clock is right.
        return current is None or current.this_update > now or current.next_update - now < LIST_LIFE - RENEW_AFTER

    def update(self, revoked: Mapping[int, Revoked] | None, now: datetime) -> RevocationList:
        """The list with these certificates; None: with those of the last list."""
        current = self.current
        if revoked is None:
            revoked = {serial: Revoked(serial, now) for serial in current.serials} if current else {}
        # A list from disk has no certificate with it and cannot be published.
        if current is None or self.is_due(now) or current.serials != revoked.keys() or not current.certificate_pem:
            # A revocation date is never later than now.
            entries = [revoked[serial]._replace(at=min(revoked[serial].at, now)) for serial in sorted(revoked)]
            current = next_list(self.folder.authority, entries, current, now=now, life=LIST_LIFE)
            self.current, self.is_ours = current, True
        return current

    def _keep(self, found: RevocationList) -> None:
        self.current, self.is_ours = found, found.is_signed_by(self.folder.authority)


# Beside the registry, so that one right to read is enough.
LISTS_TOPIC: Final = "persistent://fleet/reference/revocation-lists"
MAX_LIST_BYTES: Final = 5_000_000
"""About 69,000 certificates with reasons; a little less than one Pulsar message may have."""
MAX_LISTS: Final = 100
"""One issuer for each region."""
BACKDATED: Final = timedelta(hours=1)
"""Lists differ by whole seconds. Because they begin in the past, several can be signed in one second."""
_BEGIN: Final = b"-----BEGIN X509 CRL-----"
_END: Final = b"-----END X509 CRL-----\n"


class ListRefused(IdentityError):
    """A revocation list that cannot be accepted."""

    def __init__(self, issuer: str, why: str) -> None:
        super().__init__(f"revocation list of {issuer[:100]!r} refused: {why}")


class RevocationList(NamedTuple):
    """A list of one issuer. `serials`: what it revokes."""

    issuer: str
    number: int
    this_update: datetime
    next_update: datetime
    pem: bytes
    certificate_pem: bytes
    serials: frozenset[int]

    @property
    def message(self) -> bytes:
        """The list after its issuer's certificate, as it is published."""
        return self.certificate_pem + self.pem

    def is_later(self, other: RevocationList | None) -> bool:
        """Whether it replaces another list of its issuer. Numbers count first, because a clock may have been wrong."""
        return other is None or (self.number, self.this_update) > (other.number, other.this_update)

    def is_signed_by(self, authority: Authority) -> bool:
        """Whether this authority's key signed it. A former authority may have had the same name."""
        return x509.load_pem_x509_crl(self.pem).is_signature_valid(authority.key.public)


def read_list_message(key: str | None, body: bytes, root: x509.Certificate) -> RevocationList:
    """A list that another region published. Raises ListRefused."""
    issuer = key or ""
    if len(body) > MAX_LIST_BYTES:
        raise ListRefused(issuer, f"{len(body)} bytes, at most {MAX_LIST_BYTES} are taken")
    try:
        begin = body.index(_BEGIN)
        certificate = read_certificates(body[:begin])[0]
        # Otherwise anybody who may publish here could lock devices out.
        certificate.verify_directly_issued_by(root)
        found = _read(body[begin:], certificate)
    except (ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature, NotAnAuthority) as error:
        raise ListRefused(issuer, f"{type(error).__name__}: {error}") from error
    # Compaction keeps the last message of a key, so a list under another name would displace that one.
    if found.issuer != issuer:
        raise ListRefused(issuer, f"its issuer is {found.issuer!r}")
    return found


def lists_in(pem: bytes) -> dict[str, RevocationList]:
    """The lists in a file of ours, by issuer, without signature checks. Unreadable ones are left out."""
    found: dict[str, RevocationList] = {}
    # One by one, so that a damaged list does not hide the others.
    for part in pem.split(_END)[:-1]:
        try:
            one = _read(part + _END)
        except ValueError:
            continue
        found[one.issuer] = one
    return found


def next_list(
    authority: Authority, revoked: Iterable[Revoked], former: RevocationList | None, *, now: datetime, life: timedelta
) -> RevocationList:
    """The list after `former`: its number is one higher, its `this_update` at least a second later and never in the
    future.
    """
    this_update = (now - BACKDATED).replace(microsecond=0)
    number = 1
    if former is not None:
        later = max(this_update, former.this_update + timedelta(seconds=1))
        this_update, number = min(later, now.replace(microsecond=0)), former.number + 1
    pem = sign(authority, revoked, number=number, this_update=this_update, next_update=now + life)
    return _read(pem, authority.certificate)


def _read(pem: bytes, certificate: x509.Certificate | None = None) -> RevocationList:
    """Read a list, and check its signature if a certificate is given. Raises ValueError."""
    try:
        found = x509.load_pem_x509_crl(pem)
        issuer = found.issuer
        if certificate is not None:
            key = certificate.public_key()
            if issuer != certificate.subject or not found.is_signature_valid(key):  # type: ignore[arg-type]
                raise ValueError("its issuer did not sign it")
        number = found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        serials = frozenset(one.serial_number for one in found)
        this_update, next_update = found.last_update_utc, found.next_update_utc
    # The library parses lazily and raises half a dozen kinds of errors.
    except Exception as error:
        raise ValueError(f"it is not a revocation list with a number and a signature: {error!s:.200}") from error
    if next_update is None:
        raise ValueError("it has no expiry time (nextUpdate)")
    return RevocationList(
        issuer=common_name(issuer),
        number=number,
        this_update=this_update,
        next_update=next_update,
        pem=pem,
        certificate_pem=b"" if certificate is None else certificate.public_bytes(serialization.Encoding.PEM),
        serials=serials,
    )
