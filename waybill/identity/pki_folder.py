"""The authorities of an operator in one folder, and the certificates that they sign.

FOLDER/root-authority/    the root; its key may be kept elsewhere
FOLDER/pulsar-authority/  the root of Pulsar's servers, which signs nothing else
FOLDER/regions/REGION/    each region's authority, which works without the root's key; and `share`
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509

from waybill.daemon.bounded_file import read_bounded
from waybill.daemon.durable_file import create_durably, replace_durably
from waybill.daemon.tls import TlsSettings
from waybill.identity.authority import (
    MAX_PEM_BYTES,
    MAX_REQUEST_BYTES,
    Issued,
    KeyPair,
    common_name,
    is_chain_to,
    read_certificates,
    read_request,
    regional_name,
    server_names,
)
from waybill.identity.authority_folder import (
    AUTHORITY_KEY,
    AuthorityFolder,
    IssuedCertificate,
    certificates_in,
    read_certificate,
)
from waybill.identity.broker_conf import read_share
from waybill.identity.errors import (
    AuthorityFolderError,
    AuthorityMissing,
    NameRefused,
)
from waybill.identity.names import (
    NAME_FORM,
    DeviceName,
    PrincipalKind,
    PrincipalName,
    parse_name,
)
from waybill.record.record import DEVICE_PATTERN
from waybill.settings import name_advice, read_file

ROOT_NAME, PULSAR_NAME = "Waybill root", "Waybill Pulsar authority"
_ROOT, _PULSAR, _SHARE = "root-authority", "pulsar-authority", "share"
_CERTIFICATE, _KEY, _CA = "certificate.pem", "key.pem", "ca.pem"
_MAX_LISTS_BYTES = 64 << 20
_LIST_END = b"-----END X509 CRL-----"


def credentials_in(folder: Path) -> TlsSettings:
    """The paths of `ca.pem`, `certificate.pem` and `key.pem` in a folder."""
    return TlsSettings(ca=folder / _CA, certificate=folder / _CERTIFICATE, key=folder / _KEY)


def write_credentials(folder: Path, *, root_pem: bytes, chain_pem: bytes, key: KeyPair) -> TlsSettings:
    """Write or replace the files of a folder, the certificate last. Raises OSError.

    With a new key a reader between the two writes finds a pair that does not match, and reads again.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_durably(folder / _KEY, key.private_pem(), mode=0o600)
    replace_durably(folder / _CA, root_pem)
    replace_durably(folder / _CERTIFICATE, chain_pem)
    return credentials_in(folder)


def revoked_serials(files: Iterable[Path], authorities: Iterable[x509.Certificate]) -> set[tuple[str, int]]:
    """Issuer and serial of each certificate on the revocation lists (PEM) that these authorities signed.

    Lists of other issuers are ignored. Raises AuthorityFolderError for a file that cannot be read as lists, OSError.
    """
    signers, found = {one.subject: one for one in authorities}, set[tuple[str, int]]()
    for file in files:
        try:
            parts = read_bounded(file, _MAX_LISTS_BYTES).split(_LIST_END)[:-1]
            lists = [x509.load_pem_x509_crl(part + _LIST_END) for part in parts]
        except ValueError as error:
            raise AuthorityFolderError(file, f"is not a revocation list: {error}") from error
        for revocations in lists:
            signer = signers.get(revocations.issuer)
            if signer is not None and revocations.is_signature_valid(signer.public_key()):  # type: ignore[arg-type]
                found |= {(common_name(signer.subject), one.serial_number) for one in revocations}
    return found


class PkiFolder:
    """A root and its regions in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def root_certificate(self) -> Path:
        """The root's certificate (PEM): what brokers and clients trust."""
        return self.folder / _ROOT / "root.pem"

    def create_root(self, *, name: str = ROOT_NAME, now: datetime, lifetime: timedelta) -> AuthorityFolder:
        """Raises AuthorityExists, OSError."""
        return AuthorityFolder.create_root(self.folder / _ROOT, name, now=now, lifetime=lifetime)

    def root(self, key: Path | None = None) -> AuthorityFolder:
        """`key`: the file of its key, if that is kept elsewhere. Raises AuthorityMissing, AuthorityFolderError."""
        place = self.folder / _ROOT
        if not self.root_certificate.exists():
            raise AuthorityMissing(place, "there is no root: `waybill pki init` makes it, --folder says where it is")
        if not (key or place / AUTHORITY_KEY).exists():
            what = f"its key is not at {key or place / AUTHORITY_KEY}: say where it is kept by --root-key FILE"
            raise AuthorityMissing(place, what)
        return AuthorityFolder.open(place, key)

    def create_pulsar(self, *, now: datetime, lifetime: timedelta) -> AuthorityFolder:
        """A new root of Pulsar's servers. Raises AuthorityExists, OSError."""
        place = self.folder / _PULSAR
        return AuthorityFolder.create_root(place, PULSAR_NAME, now=now, lifetime=lifetime, path_length=0)

    def pulsar(self) -> AuthorityFolder:
        """The authority of Pulsar's servers. Raises AuthorityMissing, AuthorityFolderError."""
        place = self.folder / _PULSAR
        if not place.exists():
            raise AuthorityMissing(place, "there is no authority of Pulsar's servers: `waybill pki pulsar` makes it")
        return AuthorityFolder.open(place)

    def create_region(
        self, root: AuthorityFolder, region: str, *, servers: Sequence[str] = (), now: datetime, lifetime: timedelta
    ) -> AuthorityFolder:
        """The authority of a region. `servers`: the names that its servers may have.

        Raises AuthorityExists, AuthorityError, NameRefused, OSError.
        """
        place = self._place(region)
        return AuthorityFolder.create_regional(place, root, region, servers=servers, now=now, lifetime=lifetime)

    def region(self, region: str) -> AuthorityFolder:
        """Raises AuthorityMissing, AuthorityFolderError, NameRefused."""
        place, known = self._place(region), self.regions()
        if region not in known:
            there = f"it has {', '.join(known):.300}" if known else "it has none yet"
            what = f"has no region {region!r}: {there}; `waybill pki region` makes one{name_advice(region, known)}"
            raise AuthorityMissing(self.folder, what)
        return AuthorityFolder.open(place)

    def regions(self) -> list[str]:
        return sorted(place.parent.name for place in self.folder.glob("regions/*/authority.pem"))

    def share(self, region: str) -> Path:
        """The file with the secret name by which a region's gateways share batches; made where it is missing.

        Raises NameRefused, AuthorityFolderError, OSError.
        """
        file = self._place(region) / _SHARE
        create_durably(file, f"{secrets.token_hex(16)}\n".encode(), mode=0o600)
        try:
            read_share(file)
        except ValueError as error:
            what = f"{_SHARE}: {error}: copy that of a gateway of the region, or delete it and give all a new one"
            raise AuthorityFolderError(file.parent, what) from error
        return file

    def issued(self) -> list[IssuedCertificate]:
        """The authorities of this folder and what they signed, some of it twice (see `latest`); needs no key.

        Raises AuthorityMissing where there is no authority.
        """
        places = [self.folder / _ROOT, self.folder / _PULSAR, *map(self._place, self.regions())]
        found = [one for place in places if place.exists() for one in certificates_in(place)]
        if not found:
            raise AuthorityMissing(self.folder, "has no authority: `waybill pki init` makes the root")
        return found

    def revoked(self, files: Sequence[Path] = ()) -> set[tuple[str, int]]:
        """Issuer and serial of the revoked certificates. `files`: lists; none: `*.crl` beside the authorities."""
        regions = [self._place(region) for region in self.regions()]
        places = (self.folder, self.folder.resolve().parent, *regions)
        beside = [file for place in places for file in place.glob("*.crl")]
        return revoked_serials(files or beside, [read_certificate(place / "authority.pem") for place in regions])

    def write(
        self,
        region: str | None,
        folder: Path,
        name: str,
        *,
        servers: Sequence[str] = (),
        now: datetime,
        lifetime: timedelta,
    ) -> TlsSettings:
        """A key and its certificate as files of a folder, for a device, a client, or a server with `servers`.

        A gateway's folder also gets a copy of the region's share.

        `region`: whose authority signs; None for a server of Pulsar. A key without a certificate is used again.
        Raises AuthorityFolderError where the folder has a certificate, AuthorityMissing, NameRefused, KeyRefused,
        AuthorityError.
        """
        self._check_free(folder)
        named = parse_name(name)
        kind = named.kind if isinstance(named, PrincipalName) else None
        if (kind in {PrincipalKind.BROKER, PrincipalKind.PULSAR}) != bool(servers):
            raise NameRefused(f"{name!r:.80}: only broker@NAME and pulsar@NAME are servers, and need addresses (--at)")
        authority = self._authority_of(name, region)
        key = _key_in(folder) or KeyPair.generate()
        issued = authority.certify(key, name, servers=servers, now=now, lifetime=lifetime)
        if kind is PrincipalKind.GATEWAY and region is not None:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_durably(folder / _SHARE, read_file(self.share(region)), mode=0o600)
        return write_credentials(folder, root_pem=authority.root_pem, chain_pem=issued.chain_pem, key=key)

    def sign_request(
        self, region: str, folder: Path, name: str, request: Path, *, now: datetime, lifetime: timedelta
    ) -> None:
        """Write a device's certificate for a request (PEM file) and the root's certificate; the key stays elsewhere.

        Raises AuthorityFolderError, AuthorityFolderError, NameRefused, RequestRefused, AuthorityError, OSError.
        """
        authority, named = self.region(region), parse_name(name)
        if not isinstance(named, DeviceName):
            raise NameRefused(f"{name!r:.80} names no device: a device is TENANT/DEVICE")
        pem = read_bounded(request, MAX_REQUEST_BYTES)
        self._check_free(folder)
        if (key := _key_in(folder)) is not None and key.public != read_request(pem).public_key:
            raise AuthorityFolderError(folder, f"key.pem is not the key of {request}: take another folder")
        issued = authority.device(pem, *named, now=now, lifetime=lifetime)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_durably(folder / _CA, authority.root_pem)
        replace_durably(folder / _CERTIFICATE, issued.chain_pem)

    def renew(self, folder: Path, *, now: datetime, lifetime: timedelta) -> Issued:
        """A new certificate for the same key and name, by the same authority; only that file is replaced.

        The owner of the folder is not trusted: a certificate is renewed only if the authority recorded it, byte for
        byte, and it has not ended and is on no revocation list. Raises AuthorityFolderError, AuthorityMissing, and what
        `certify` raises.
        """
        try:
            old = read_certificates(read_bounded(folder / _CERTIFICATE, MAX_PEM_BYTES))[0]
            key = KeyPair.from_pem(read_bounded(folder / _KEY, MAX_PEM_BYTES))
        except (FileNotFoundError, ValueError) as error:
            raise AuthorityFolderError(folder, f"there is nothing to renew: {error}") from error
        authority = self._signer_of(old, folder)
        if why := self._no_renewal(old, key, authority, now):
            raise AuthorityFolderError(folder, why)
        name = common_name(old.subject)
        issued = authority.certify(key, name, servers=server_names(old), now=now, lifetime=lifetime)
        replace_durably(folder / _CERTIFICATE, issued.chain_pem)
        return issued

    def _no_renewal(self, old: x509.Certificate, key: KeyPair, authority: AuthorityFolder, now: datetime) -> str:
        """Why a certificate is not signed again; "": nothing is wrong with it."""
        issuer, name = authority.authority.name, common_name(old.subject)
        recorded = authority.recorded(old.serial_number)
        if old.public_key() != key.public:
            return "key.pem is not the key of certificate.pem: make a new pair elsewhere"
        if not is_chain_to([old], [authority.authority.certificate]):
            return f"{issuer} did not sign the certificate of {name!r} in this folder: another authority made it"
        if recorded is None or recorded.certificate != old:
            return f"{issuer} has no record of this certificate of {name!r}: put its file back to `issued`"
        if old.not_valid_after_utc <= now:
            ended = f"the certificate of {name} ended {old.not_valid_after_utc:%Y-%m-%d}"
            return f"{ended}: delete certificate.pem, and make one for the same key by the command that made it"
        if (issuer, old.serial_number) in self.revoked():
            return f"the certificate of {name} is on a revocation list"
        return ""

    def _signer_of(self, certificate: x509.Certificate, folder: Path) -> AuthorityFolder:
        issuer = common_name(certificate.issuer)
        if issuer == PULSAR_NAME:
            return self.pulsar()
        for region in self.regions():
            if regional_name(region) == issuer:
                return self.region(region)
        raise AuthorityMissing(self.folder, f"has no authority {issuer!r:.100}, which {folder}/{_CERTIFICATE} names")

    def _authority_of(self, name: str, region: str | None) -> AuthorityFolder:
        if name.startswith(f"{PrincipalKind.PULSAR}@"):
            if region is not None:
                raise NameRefused(f"{name} is signed by the authority of Pulsar's servers: leave out --region {region}")
            return self.pulsar()
        if region is None:
            raise NameRefused(f"{name} is signed by the authority of a region: say which, such as --region eu")
        return self.region(region)

    def _check_free(self, folder: Path) -> None:
        if (folder / _CERTIFICATE).exists():
            whose = common_name(read_certificate(folder / _CERTIFICATE).subject)
            other = f"use another folder, or `waybill pki renew {folder}`"
            raise AuthorityFolderError(folder, f"has the key of {whose}, which is never replaced: {other}")

    def _place(self, region: str) -> Path:
        # The name becomes a folder and a part of certificates' names.
        if not DEVICE_PATTERN.fullmatch(region):
            raise NameRefused(f"{region!r:.80} is not the name of a region: write one such as eu, {NAME_FORM}")
        return self.folder / "regions" / region


def _key_in(folder: Path) -> KeyPair | None:
    """The key of a folder; None where there is none. Raises KeyRefused, OSError."""
    try:
        return KeyPair.from_pem(read_file(folder / _KEY))
    except FileNotFoundError:
        return None
