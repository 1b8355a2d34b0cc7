"""An authority in its folder.

FOLDER/root.pem          the root's certificate: what everybody trusts
FOLDER/authority.pem     the authority's own certificate, and those between it and the root
FOLDER/authority.key     its key, for its owner alone; it may be kept elsewhere
FOLDER/issued/SERIAL.pem every certificate that it signed, on disk before anybody gets it
FOLDER/ended/SERIAL.pem  certificates that ended long ago
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple, Self

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
    AuthorityExists,
    AuthorityFolderError,
    AuthorityMissing,
    IdentityError,
    NameRefused,
    NotAnAuthority,
)
from waybill.identity.names import DeviceName, parse_name
from waybill.settings import read_file

_ROOT, _CERTIFICATE, AUTHORITY_KEY = "root.pem", "authority.pem", "authority.key"
_ISSUED, _ENDED = "issued", "ended"


class IssuedCertificate(NamedTuple):
    """A certificate as it is listed. `what`: `root`, `authority`, `server`, `device`, or the kind of a client."""

    name: str
    what: str
    issuer: str
    serial: int
    not_before: datetime
    not_after: datetime
    file: Path

    @classmethod
    def read(cls, file: Path) -> Self:
        """The first certificate of a PEM file. Raises AuthorityFolderError, OSError."""
        found = read_certificate(file)
        return cls(
            name=common_name(found.subject),
            what=kind_of(found),
            issuer=common_name(found.issuer),
            serial=found.serial_number,
            not_before=found.not_valid_before_utc,
            not_after=found.not_valid_after_utc,
            file=file,
        )


def read_certificate(file: Path) -> x509.Certificate:
    """The first certificate of a PEM file. Raises AuthorityFolderError, OSError."""
    try:
        return read_certificates(read_file(file))[0]
    except NotAnAuthority as error:
        raise AuthorityFolderError(file, str(error)) from error


@dataclass(frozen=True, slots=True)
class AuthorityFolder:
    """One authority in its folder. Serials are random, so two processes may issue at once."""

    folder: Path
    authority: Authority
    root_pem: bytes

    @classmethod
    def create_root(cls, folder: Path, name: str, *, now: datetime, lifetime: timedelta, path_length: int = 1) -> Self:
        """A new root; with a `path_length` of 0 it signs no authority. Raises AuthorityExists, OSError."""
        key, serial = KeyPair.generate(), x509.random_serial_number()
        root = make_root(name, key, now=now, serial=serial, lifetime=lifetime, path_length=path_length)
        return cls._create(folder, key, _pem(root.certificate), _pem(root.certificate))

    @classmethod
    def create_regional(
        cls, folder: Path, root: Self, region: str, *, servers: Sequence[str] = (), now: datetime, lifetime: timedelta
    ) -> Self:
        """The authority of a region, signed by a root. `servers`: names that its servers may have.

        Raises AuthorityExists, AuthorityError, NameRefused, OSError.
        """
        if (folder / AUTHORITY_KEY).exists():
            raise AuthorityExists(folder)
        key = KeyPair.generate()
        issued = root.sign_regional(region, key, servers=servers, now=now, lifetime=lifetime)
        return cls._create(folder, key, issued.chain_pem, root.root_pem)

    @classmethod
    def _create(cls, folder: Path, key: KeyPair, chain_pem: bytes, root_pem: bytes) -> Self:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not create_durably(folder / AUTHORITY_KEY, key.private_pem(), mode=0o600):
            raise AuthorityExists(folder)
        replace_durably(folder / _ROOT, root_pem)
        replace_durably(folder / _CERTIFICATE, chain_pem)
        return cls.open(folder)

    @classmethod
    def open(cls, folder: Path, key: Path | None = None) -> Self:
        """The authority of a folder. `key`: the file of its key, if that is kept elsewhere.

        Raises AuthorityMissing, AuthorityFolderError.
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
            raise AuthorityFolderError(folder, f"cannot be used: {error}") from error

    def sign_regional(
        self, region: str, key: KeyPair, *, servers: Sequence[str] = (), now: datetime, lifetime: timedelta
    ) -> Issued:
        serial = x509.random_serial_number()
        issued = make_regional(
            self.authority, region, key.public, servers=servers, now=now, serial=serial, lifetime=lifetime
        )
        return self._recorded(issued)

    def renew_regional(
        self, regional: Self, region: str, *, servers: Sequence[str] = (), now: datetime, lifetime: timedelta
    ) -> Self:
        """A region's authority with the same key and a new end: certificates that it signed stay valid.

        `servers`: the names that its servers may have; none: those of before. Raises NameRefused, AuthorityError.
        """
        permitted = servers or permitted_servers(regional.authority.certificate) or ()
        key = regional.authority.key
        issued = self.sign_regional(region, key, servers=permitted, now=now, lifetime=lifetime)
        replace_durably(regional.folder / _CERTIFICATE, issued.chain_pem)
        return type(self)(regional.folder, Authority(issued.certificate, key), self.root_pem)

    def device(self, request: bytes, tenant: str, device: str, *, now: datetime, lifetime: timedelta) -> Issued:
        """A device's operational certificate. Raises RequestRefused, NameRefused, AuthorityError."""
        serial = x509.random_serial_number()
        issued = issue_device(self.authority, request, tenant, device, now=now, serial=serial, lifetime=lifetime)
        return self._recorded(issued)

    def client(self, key: KeyPair, principal: str, *, now: datetime, lifetime: timedelta) -> Issued:
        serial = x509.random_serial_number()
        issued = issue_client(self.authority, key.public, principal, now=now, serial=serial, lifetime=lifetime)
        return self._recorded(issued)

    def server(self, key: KeyPair, cn: str, names: Sequence[str], *, now: datetime, lifetime: timedelta) -> Issued:
        serial = x509.random_serial_number()
        issued = issue_server(self.authority, key.public, cn, names, now=now, serial=serial, lifetime=lifetime)
        return self._recorded(issued)

    def certify(
        self, key: KeyPair, name: str, *, servers: Sequence[str] = (), now: datetime, lifetime: timedelta
    ) -> Issued:
        """The certificate of a device or a client, or with `servers` of a server that is reached there.

        Raises NameRefused, AuthorityError.
        """
        if servers:
            return self.server(key, name, servers, now=now, lifetime=lifetime)
        named = parse_name(name)
        if named is None:
            raise NameRefused(f"{name!r:.80} is not a name: a device is TENANT/DEVICE, a gateway gateway@NAME")
        if isinstance(named, DeviceName):
            return self.device(make_request(key, name), *named, now=now, lifetime=lifetime)
        return self.client(key, name, now=now, lifetime=lifetime)

    def recorded(self, serial: int) -> Issued | None:
        """A certificate that was signed here, with its chain; None if there is none. Raises AuthorityFolderError."""
        for kept in (_ISSUED, _ENDED):
            file = self.folder / kept / f"{serial:040x}.pem"
            if file.exists():
                return with_chain(read_certificate(file), self.authority)
        return None

    def put_away(self, file: str) -> None:
        """Move a certificate that ended, `SERIAL.pem`, to `ended`; it is still recorded. Raises OSError."""
        (self.folder / _ENDED).mkdir(mode=0o700, exist_ok=True)
        (self.folder / _ISSUED / file).rename(self.folder / _ENDED / file)

    def _recorded(self, issued: Issued) -> Issued:
        # One file for each certificate: two processes need no lock, and a crash leaves no half line.
        folder = self.folder / _ISSUED
        folder.mkdir(mode=0o700, exist_ok=True)
        created = create_durably(folder / f"{issued.serial:040x}.pem", _pem(issued.certificate))
        assert created, "a random serial came twice"
        return issued


def add_certificates(folder: Path, source: Path) -> None:
    """Add to an authority's folder what another place has of it: its certificates, and those that it issued.

    In `source` all files are in one folder, as in a Kubernetes Secret. Raises AuthorityFolderError.
    """
    try:
        (folder / _ISSUED).mkdir(mode=0o700, parents=True, exist_ok=True)
        for file in source.glob("*.pem"):
            if file.name in (_ROOT, _CERTIFICATE):
                replace_durably(folder / file.name, file.read_bytes())
            elif not (folder / _ENDED / file.name).exists():
                create_durably(folder / _ISSUED / file.name, file.read_bytes())
    except OSError as error:
        raise AuthorityFolderError(folder, f"cannot get the files of {source}: {error}") from error


def certificates_in(folder: Path) -> list[IssuedCertificate]:
    """The authority of a folder, its root, and what it signed. Its key is not needed. Raises AuthorityFolderError."""
    issued = [*folder.glob(f"{_ISSUED}/*.pem"), *folder.glob(f"{_ENDED}/*.pem")]
    return [IssuedCertificate.read(file) for file in (folder / _ROOT, folder / _CERTIFICATE, *issued)]


def latest(issued: Iterable[IssuedCertificate]) -> list[IssuedCertificate]:
    """Of each name and purpose the certificate that ends last: the others were renewed."""
    by_end = sorted(issued, key=lambda one: one.not_after)
    newest = {(one.name, one.what): one for one in by_end}
    return sorted(newest.values(), key=lambda one: (one.not_after, one.name))


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
