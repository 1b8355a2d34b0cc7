"""An authority on disk: its certificate, its key, and each certificate that it signed.

FOLDER/root.pem          the root that everybody trusts
FOLDER/authority.pem     the authority's certificate, and those between it and the root
FOLDER/authority.key     its private key, mode 0600
FOLDER/issued/SERIAL.pem what it signed, on disk before anybody gets it
FOLDER/ended/SERIAL.pem  what ended long ago, out of the way of who reads what may still be good
"""

from __future__ import annotations

import binascii
import heapq
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple, Self, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from waybill.daemon.durable_file import create_durably, replace_durably
from waybill.identity.authority import (
    Authority,
    Issued,
    KeyPair,
    common_name,
    issue_client,
    issue_device,
    issue_server,
    kind_of,
    make_regional,
    make_request,
    make_root,
    permitted_servers,
    read_certificates,
    with_chain,
)
from waybill.identity.errors import (
    AuthorityDamaged,
    AuthorityExists,
    AuthorityMissing,
    IdentityError,
    NameRefused,
    NotAnAuthority,
)
from waybill.identity.names import DeviceName, parse_name
from waybill.settings import read_file

_ROOT, _CERTIFICATE, AUTHORITY_KEY = "root.pem", "authority.pem", "authority.key"
_ISSUED, _ENDED = "issued", "ended"
_TRUSTED = re.compile(rb"-----BEGIN TRUSTED CERTIFICATE-----([\sA-Za-z0-9+/=]+)-----END")
Read = TypeVar("Read")
OtherKeys = dict[tuple[str, str], list["IssuedCertificate"]]
"""By name and purpose."""
AUTHORITY_FILES = (_ROOT, _CERTIFICATE)
"""The certificates of the root and of the authority itself."""


class IssuedCertificate(NamedTuple):
    """A certificate that an authority signed, as it is listed."""

    name: str
    issuer: str
    serial: int
    not_before: datetime
    not_after: datetime
    file: Path
    what: str
    """`root`, `authority`, `server`, `device`, or the kind of a client."""
    key: bytes
    """Its public key (DER): whoever renews a certificate keeps it."""
    is_refused: bool = False
    """A file of trusted certificates has it as one that is not (`openssl x509 -addreject`)."""

    @classmethod
    def read(cls, file: Path) -> Self:
        """The first certificate of a file (PEM). Raises AuthorityDamaged where there is none, OSError."""
        try:
            return cls._of(read_certificates(read_file(file))[0], file)
        except NotAnAuthority as error:
            raise AuthorityDamaged(file, str(error)) from error

    @classmethod
    def refused_in(cls, file: Path) -> list[Self]:
        """The certificates of a file that TLS takes for no purpose (`BEGIN TRUSTED CERTIFICATE`).

        Raises AuthorityDamaged, OSError.
        """
        try:
            bodies = map(binascii.a2b_base64, _TRUSTED.findall(read_file(file)))
            # Each: a certificate and, in DER too, its purposes: trusted ones first, or refused ones alone, tagged A0.
            ends = [(body, 4 + int.from_bytes(body[2:4])) for body in bodies]
            refused = [body[:end] for body, end in ends if body[end + 2 : end + 3] == b"\xa0"]
            return [cls._of(x509.load_der_x509_certificate(one), file)._replace(is_refused=True) for one in refused]
        except ValueError as error:
            raise AuthorityDamaged(file, f"a trusted certificate cannot be read: {error}") from error

    @classmethod
    def _of(cls, certificate: x509.Certificate, file: Path) -> Self:
        name, issuer = common_name(certificate.subject), common_name(certificate.issuer)
        key = certificate.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        return cls(name, issuer, certificate.serial_number, begins, ends, file, kind_of(certificate), key)


@dataclass(frozen=True, slots=True)
class AuthorityFolder:
    """One authority in its folder. Serials are random; of two processes that issue at once both are recorded."""

    folder: Path
    authority: Authority
    root_pem: bytes

    @classmethod
    def create_root(cls, folder: Path, name: str, *, now: datetime, lifetime: timedelta, path_length: int = 1) -> Self:
        """A new root; with a `path_length` of 0 it signs no authority. Raises AuthorityExists, OSError."""
        key, serial = _own_key(folder), x509.random_serial_number()
        root = make_root(name, key, now=now, serial=serial, lifetime=lifetime, path_length=path_length)
        _keep_key(folder, key)
        return cls._create(folder, _pem(root.certificate), _pem(root.certificate))

    @classmethod
    def create_regional(
        cls,
        folder: Path,
        root: Self,
        region: str,
        *,
        servers: Sequence[str] = (),
        now: datetime,
        lifetime: timedelta,
    ) -> Self:
        """The authority of a region, signed by a root, and which names its servers may have.

        Raises AuthorityExists, AuthorityExpired, NameRefused, OSError.
        """
        key = _own_key(folder)
        issued = root.sign_regional(region, key, servers=servers, now=now, lifetime=lifetime)
        _keep_key(folder, key)
        return cls._create(folder, issued.chain_pem, root.root_pem)

    @classmethod
    def _create(cls, folder: Path, chain_pem: bytes, root_pem: bytes) -> Self:
        # The certificate last, and only where there is none: of two that make one at once, one gets AuthorityExists.
        replace_durably(folder / _ROOT, root_pem)
        if not create_durably(folder / _CERTIFICATE, chain_pem):
            raise AuthorityExists(folder)
        return cls.open(folder)

    @classmethod
    def open(cls, folder: Path, key: Path | None = None) -> Self:
        """The authority of a folder; `key`: where its key is, if that is kept elsewhere.

        Raises AuthorityMissing, AuthorityDamaged.
        """
        try:
            certificate, *issuers = read_certificates(read_file(folder / _CERTIFICATE))
            root_pem = read_file(folder / _ROOT)
            pair = KeyPair.from_pem(read_file(key or folder / AUTHORITY_KEY))
            return cls(folder, Authority(certificate, pair, tuple(issuers)), root_pem)
        except FileNotFoundError as error:
            what = f"has no {Path(error.filename).name}: make an authority there, or say where its key is"
            raise AuthorityMissing(folder, what) from error
        except (IdentityError, OSError) as error:
            raise AuthorityDamaged(folder, f"cannot be used: {error}") from error

    @staticmethod
    def certificate_in(folder: Path) -> x509.Certificate:
        """The certificate of the authority of a folder; its key is not needed. Raises AuthorityDamaged, OSError."""
        try:
            return read_certificates(read_file(folder / _CERTIFICATE))[0]
        except NotAnAuthority as error:
            raise AuthorityDamaged(folder, f"{_CERTIFICATE}: {error}") from error

    def sign_regional(
        self, region: str, key: KeyPair, *, servers: Sequence[str] = (), now: datetime, lifetime: timedelta
    ) -> Issued:
        """The certificate of a region's authority, recorded here."""
        serial = x509.random_serial_number()
        issued = make_regional(
            self.authority, region, key.public, servers=servers, now=now, serial=serial, lifetime=lifetime
        )
        return self._recorded(issued)

    def renew_regional(
        self, regional: Self, region: str, *, servers: Sequence[str] = (), now: datetime, lifetime: timedelta
    ) -> Self:
        """A region's authority with the same key and a new end: what it signed before stays good.

        `servers`: the names that its servers may have; none: those of before.
        Raises NameRefused where none were said before, either.
        """
        permitted = servers or permitted_servers(regional.authority.certificate)
        if permitted is None:
            raise NameRefused(f"{regional.authority.name} was made without --servers: say which names its servers have")
        key = regional.authority.key
        issued = self.sign_regional(region, key, servers=permitted, now=now, lifetime=lifetime)
        # The chain alone is replaced: the key stays, so what it signed is still good.
        replace_durably(regional.folder / _CERTIFICATE, issued.chain_pem)
        return type(self)(regional.folder, Authority(issued.certificate, regional.authority.key), self.root_pem)

    def device(self, request: bytes, tenant: str, device: str, *, now: datetime, lifetime: timedelta) -> Issued:
        """A device's operational certificate, recorded. Raises RequestRefused, NameRefused, AuthorityExpired."""
        serial = x509.random_serial_number()
        issued = issue_device(self.authority, request, tenant, device, now=now, serial=serial, lifetime=lifetime)
        return self._recorded(issued)

    def client(self, key: KeyPair, principal: str, *, now: datetime, lifetime: timedelta) -> Issued:
        """A client's certificate, recorded. Raises NameRefused, AuthorityExpired."""
        serial = x509.random_serial_number()
        return self._recorded(
            issue_client(self.authority, key.public, principal, now=now, serial=serial, lifetime=lifetime)
        )

    def server(self, key: KeyPair, cn: str, names: Sequence[str], *, now: datetime, lifetime: timedelta) -> Issued:
        """A server's certificate, recorded. Raises NameRefused, AuthorityExpired."""
        serial = x509.random_serial_number()
        issued = issue_server(self.authority, key.public, cn, names, now=now, serial=serial, lifetime=lifetime)
        return self._recorded(issued)

    def recorded(self, serial: int) -> Issued | None:
        """A certificate that was signed here, with its chain; None where this authority has none of this serial.

        Raises AuthorityDamaged for a file that is no certificate.
        """
        file = self.folder / _ISSUED / f"{serial:040x}.pem"
        try:
            certificate = _wherever_kept(file, lambda kept: read_certificates(read_file(kept))[0])
        except FileNotFoundError:
            return None
        except NotAnAuthority as error:
            raise AuthorityDamaged(self.folder, f"{file.name}: {error}") from error
        return with_chain(certificate, self.authority)

    def put_away(self, file: str) -> None:
        """Move a certificate that ended, `SERIAL.pem`, to `ended`; it is still recorded. Raises OSError."""
        (self.folder / _ENDED).mkdir(mode=0o700, exist_ok=True)
        (self.folder / _ISSUED / file).rename(self.folder / _ENDED / file)

    def _recorded(self, issued: Issued) -> Issued:
        # One file each, so that two processes need no lock, and a crash leaves no half line.
        folder = self.folder / _ISSUED
        folder.mkdir(mode=0o700, exist_ok=True)
        created = create_durably(folder / f"{issued.serial:040x}.pem", _pem(issued.certificate))
        assert created, "a random serial came twice"
        return issued


def _own_key(folder: Path) -> KeyPair:
    """A key for an authority that is to be made in a folder; nothing is written. Raises AuthorityExists."""
    if (folder / _CERTIFICATE).exists():
        raise AuthorityExists(folder)
    try:
        # The key that a crash left here, before its certificate was written, is as good as another one.
        return KeyPair.from_pem(read_file(folder / AUTHORITY_KEY))
    except FileNotFoundError:
        return KeyPair.generate()


def _keep_key(folder: Path, key: KeyPair) -> None:
    # After it was signed: what cannot be signed leaves no key behind.
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if create_durably(folder / AUTHORITY_KEY, key.private_pem(), mode=0o600):
        return
    if KeyPair.from_pem(read_file(folder / AUTHORITY_KEY)).public != key.public:
        raise AuthorityExists(folder)


def issued_in(folder: Path, newest: int | None = None) -> list[IssuedCertificate]:
    """What the authority of a folder signed, by name and end; its key is not needed. Raises AuthorityDamaged.

    `newest`: only so many, those that were recorded last.
    """
    # By name: one that is put away meanwhile may be seen in both.
    by_name = {file.name: file for kept in (_ISSUED, _ENDED) for file in (folder / kept).glob("*.pem")}
    files = list(by_name.values())
    if newest is not None:
        files = heapq.nlargest(newest, files, key=lambda file: _wherever_kept(file, Path.stat).st_mtime)
    found = [_wherever_kept(file, IssuedCertificate.read) for file in files]
    return sorted(found, key=lambda one: (one.name, one.not_after))


def _wherever_kept(file: Path, read: Callable[[Path], Read]) -> Read:
    """What is read of a recorded certificate, which may be put away at this moment."""
    try:
        return read(file)
    except FileNotFoundError:
        return read(file.parent.parent / _ENDED / file.name)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def certify(
    authority: AuthorityFolder,
    key: KeyPair,
    name: str,
    *,
    servers: Sequence[str] = (),
    now: datetime,
    lifetime: timedelta,
) -> Issued:
    """The certificate of whom a name names: a device, a client, or with `servers` a server that is reached there.

    Raises NameRefused, AuthorityExpired.
    """
    if servers:
        return authority.server(key, name, servers, now=now, lifetime=lifetime)
    named = parse_name(name)
    if named is None:
        raise NameRefused(f"{name!r:.80} is not a name: a device is TENANT/DEVICE, a gateway gateway@NAME")
    if isinstance(named, DeviceName):
        return authority.device(make_request(key, name), *named, now=now, lifetime=lifetime)
    return authority.client(key, name, now=now, lifetime=lifetime)


def other_keys(issued: Iterable[IssuedCertificate], newest: Iterable[IssuedCertificate], now: datetime) -> OtherKeys:
    """Beside the newest ones: what is good still and of another key, which somebody else may hold."""
    found: OtherKeys = {(one.name, one.what): [] for one in newest}
    keys = {(one.name, one.what): {one.key} for one in newest}
    # Of each key the one that ends last; what was renewed has the same.
    for one in sorted(issued, key=lambda one: one.not_after, reverse=True):
        seen = keys.get((one.name, one.what))
        if seen is not None and one.not_after > now and one.key not in seen:
            seen.add(one.key)
            found[one.name, one.what].append(one)
    return found


def latest(issued: Iterable[IssuedCertificate]) -> list[IssuedCertificate]:
    """Of each name and purpose the certificate that ends last: the others were renewed."""
    newest: dict[tuple[str, str], IssuedCertificate] = {}
    # The one that ends last is written last, and stays.
    for one in sorted(issued, key=lambda one: one.not_after):
        newest[one.name, one.what] = one
    return sorted(newest.values(), key=lambda one: (one.not_after, one.name))
