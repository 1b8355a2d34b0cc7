"""The authorities of an operator in one folder, and certificates for whoever they name.

FOLDER/root-authority/    the root; its key may be kept elsewhere
FOLDER/pulsar-authority/  the root of Pulsar's servers, which signs these and nothing else
FOLDER/regions/REGION/    each region's authority, which works without the root's key; and `share`
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Final

from cryptography import x509
from pydantic import Field

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
    AUTHORITY_FILES,
    AUTHORITY_KEY,
    AuthorityFolder,
    IssuedCertificate,
    certify,
    issued_in,
)
from waybill.identity.broker_conf import read_share
from waybill.identity.errors import (
    AuthorityDamaged,
    AuthorityMissing,
    CredentialsRefused,
    IdentityError,
    KeyExists,
    KeyRefused,
    NameRefused,
)
from waybill.identity.names import (
    NAME_FORM,
    DeviceName,
    PrincipalKind,
    PrincipalName,
    did_you_mean,
    nearest,
    parse_name,
    principal,
)
from waybill.record.record import DEVICE_PATTERN
from waybill.settings import Settings, file_fault, open_file, read_file

# The revocation state of certificates.

UNKNOWN: Final = "unknown"
"""No list of the issuer is here, or the one that is here has ended, and it does not name the certificate."""
NOT_REVOKED: Final = "no"
_REVOKED: Final = "revoked"
# What the access daemon writes of a device that is not let in.
_STATES: Final = {
    x509.ReasonFlags.certificate_hold: "suspended",
    x509.ReasonFlags.affiliation_changed: "moved",
    x509.ReasonFlags.superseded: "replaced",
}
_MAX_FILE_BYTES: Final = 64 << 20
_END: Final = b"-----END X509 CRL-----"


@dataclass(frozen=True, slots=True)
class _List:
    number: int
    until: datetime
    states: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class ListedRevocations:
    """The last list of each issuer."""

    _lists: Mapping[str, _List] = field(default_factory=dict)

    def state(self, issuer: str, serial: int, now: datetime) -> str:
        """`revoked`, `suspended`, `moved`, `replaced`, `no`, or `unknown` where no list of today says so."""
        found = self._lists.get(issuer)
        if found is None:
            return UNKNOWN
        return found.states.get(serial) or (NOT_REVOKED if now < found.until else UNKNOWN)


def read_revocations(files: Iterable[Path], authorities: Iterable[x509.Certificate]) -> ListedRevocations:
    """The lists of these files (PEM, many in one file) that these authorities signed; others are passed over.

    Raises OSError.
    """
    signers, lists = {one.subject: one for one in authorities}, dict[str, _List]()
    for part in (part for file in files for part in _parts(file)):
        try:
            issuer, found = _read(part, signers)
        except ValueError:
            continue
        if issuer not in lists or found.number > lists[issuer].number:
            lists[issuer] = found
    return ListedRevocations(lists)


def _parts(file: Path) -> list[bytes]:
    try:
        return [part + _END for part in read_bounded(file, _MAX_FILE_BYTES).split(_END)[:-1]]
    except ValueError:  # too large for one that was written here
        return []


def _read(pem: bytes, signers: Mapping[x509.Name, x509.Certificate]) -> tuple[str, _List]:
    """A list, and whose it is. Raises ValueError."""
    try:
        found = x509.load_pem_x509_crl(pem)
        if not found.is_signature_valid(signers[found.issuer].public_key()):  # type: ignore[arg-type]
            raise ValueError("its issuer did not sign it")
        number = found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        until, states = found.next_update_utc, {one.serial_number: _state(one) for one in found}
    # Of half a dozen kinds: the library looks at a part only when it is asked for.
    except Exception as error:
        raise ValueError(f"it is no list of an authority here: {error!s:.200}") from error
    if until is None:
        raise ValueError("it has no expiry time (nextUpdate)")
    return common_name(found.issuer), _List(number, until, states)


def _state(revoked: x509.RevokedCertificate) -> str:
    try:
        reason = revoked.extensions.get_extension_for_class(x509.CRLReason).value.reason
    except x509.ExtensionNotFound:
        return _REVOKED
    return _STATES.get(reason, _REVOKED)


# The files of a client or server: certificate, key and trusted root (PEM).


def credentials_in(folder: Path) -> TlsSettings:
    """Where the files of a folder are: `ca.pem`, `certificate.pem`, `key.pem`."""
    return TlsSettings(ca=folder / "ca.pem", certificate=folder / "certificate.pem", key=folder / "key.pem")


def write_credentials(folder: Path, *, root_pem: bytes, chain_pem: bytes, key: KeyPair) -> TlsSettings:
    """Write or replace the files of a folder, the key with mode 0600, the certificate last. Raises OSError.

    A renewal that keeps its key changes one file, and so at once; with a new key a reader between the two writes finds
    a pair that does not match, and reads again.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    files = credentials_in(folder)
    assert files.key is not None
    assert files.certificate is not None
    # With its mode from the first byte on, not changed afterwards.
    replace_durably(files.key, key.private_pem(), mode=0o600)
    replace_durably(files.ca, root_pem)
    replace_durably(files.certificate, chain_pem)
    return files


@contextmanager
def opened_folder(folder: Path) -> Iterator[int]:
    """A folder's descriptor; its own last part is no link. Raises CredentialsRefused, OSError."""
    if folder.is_symlink():
        raise CredentialsRefused(folder, "it is a link: name the folder itself")
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read_in(folder: Path, descriptor: int, name: str) -> bytes:
    """A file of a folder that was opened: no link is followed and nothing waited for. Raises CredentialsRefused."""
    try:
        opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=descriptor)
        with os.fdopen(opened, "rb") as file:
            if not stat.S_ISREG(os.fstat(opened).st_mode):
                raise CredentialsRefused(folder, f"{name}: it is no file: there is nothing to renew")
            if len(content := file.read(MAX_PEM_BYTES + 1)) > MAX_PEM_BYTES:
                raise CredentialsRefused(folder, f"{name}: it has more than {MAX_PEM_BYTES} bytes")
            return content
    except FileNotFoundError as error:
        raise CredentialsRefused(folder, f"has no {name}: there is nothing to renew") from error
    except OSError as error:
        why = "it is a link: put the file itself there" if error.errno == errno.ELOOP else file_fault(error)
        raise CredentialsRefused(folder, f"{name}: {why}") from error


ROOT_NAME = "Waybill root"
_ROOT, _PULSAR = "root-authority", "pulsar-authority"
PULSAR_NAME = "Waybill Pulsar authority"
_SHARE = "share"
_CERTIFICATE, _KEY = "certificate.pem", "key.pem"
_SOMEBODY = "somebody"


class RenewalList(Settings):
    """What a timer renews: folders, and whose certificate each has."""

    folders: Annotated[dict[Path, str], Field(min_length=1, max_length=1000)]
    """Such as `"/etc/waybill/tls/broker" = "broker@eu"`."""


class PkiFolder:
    """A root and its regions in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def root_certificate(self) -> Path:
        """The root's certificate (PEM): what brokers and clients trust."""
        return self.folder / _ROOT / "root.pem"

    def create_root(self, *, name: str = ROOT_NAME, now: datetime, lifetime: timedelta) -> AuthorityFolder:
        """A new root. Raises AuthorityExists, OSError."""
        return AuthorityFolder.create_root(self.folder / _ROOT, name, now=now, lifetime=lifetime)

    def root(self, key: Path | None = None) -> AuthorityFolder:
        """The root, with its key where that is kept elsewhere. Raises AuthorityMissing, AuthorityDamaged."""
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
        """The authority of Pulsar's servers. Raises AuthorityMissing, AuthorityDamaged."""
        place = self.folder / _PULSAR
        if not place.exists():
            raise AuthorityMissing(place, "there is no authority of Pulsar's servers: `waybill pki pulsar` makes it")
        return AuthorityFolder.open(place)

    def create_region(
        self,
        root: AuthorityFolder,
        region: str,
        *,
        servers: Sequence[str] = (),
        now: datetime,
        lifetime: timedelta,
    ) -> AuthorityFolder:
        """The authority of a region, and which names its servers may have.

        Raises AuthorityExists, AuthorityExpired, NameRefused, OSError.
        """
        if (near := nearest(region, self.regions())) and near != region and near.casefold() == region.casefold():
            raise NameRefused(f"{region!r} is {near} but for upper and lower case: write {near}, or another name")
        place = self._place(region)
        return AuthorityFolder.create_regional(place, root, region, servers=servers, now=now, lifetime=lifetime)

    def region(self, region: str) -> AuthorityFolder:
        """The authority of a region. Raises AuthorityMissing, AuthorityDamaged, NameRefused."""
        place, there = self._place(region), self.regions()
        if region not in there:
            known = f"it has {', '.join(there):.300}" if there else "it has none yet"
            what = f"has no region {region!r}: {did_you_mean(region, there)}{known}; `waybill pki region` makes one"
            raise AuthorityMissing(self.folder, what)
        return AuthorityFolder.open(place)

    def regions(self) -> list[str]:
        """The regions that have an authority here."""
        return sorted(place.parent.name for place in (self.folder / "regions").glob("*/authority.pem"))

    def share(self, region: str) -> Path:
        """The file with the secret name by which a region's gateways share batches; drawn where it is missing.

        Raises NameRefused, AuthorityDamaged for a file that names nothing, OSError.
        """
        file = self._place(region) / _SHARE
        create_durably(file, f"{secrets.token_hex(16)}\n".encode(), mode=0o600)
        try:
            read_share(file)
        except ValueError as error:
            what = f"{_SHARE}: {error}: copy that of a gateway of the region, or delete it and give all a new one"
            raise AuthorityDamaged(file.parent, what) from error
        return file

    def issued(self) -> list[IssuedCertificate]:
        """What every authority of this folder signed, and these themselves; no key is needed.

        A region's machine has no root. Some are there twice: see `latest`. Raises AuthorityMissing where there is none.
        """
        places = [place for place in self._places() if place.exists()]
        if not places:
            raise AuthorityMissing(self.folder, "has no authority: `waybill pki init` makes the root")
        own = [IssuedCertificate.read(place / name) for place in places for name in AUTHORITY_FILES]
        return [*own, *(one for place in places for one in issued_in(place))]

    def revocations(self, files: Sequence[Path] = ()) -> ListedRevocations:
        """What the revocation lists of these files say; none: of those beside the authorities, `*.crl`.

        Beside: in this folder, in the one around it, and in the regions' own. Raises OSError, AuthorityDamaged.
        """
        places = [self._place(region) for region in self.regions()]
        around = [self.folder, self.folder.resolve().parent, *places]
        beside = (file for place in around for file in place.glob("*.crl") if os.access(file, os.R_OK))
        found = files or sorted(beside)
        return read_revocations(found, [AuthorityFolder.certificate_in(place) for place in places])

    def write(
        self,
        region: str | None,
        folder: Path,
        name: str,
        *,
        servers: Sequence[str] = (),
        now: datetime,
        lifetime: timedelta,
        has_share: bool = False,
    ) -> TlsSettings:
        """A key and its certificate as files of a folder, for a device, a client, or a server reached there.

        `region`: whose authority signs; None for a server of Pulsar.
        A key without a certificate, which a command that was killed leaves, is taken as it is. `has_share`: a copy of
        the region's share, too.
        Raises KeyExists where the folder has a certificate, AuthorityMissing, NameRefused, KeyRefused,
        AuthorityExpired.
        """
        if (owner := _owner(folder)) is not None:
            raise KeyExists(folder, owner)
        if servers:
            _check_server(name)
        authority, files, found = self._authority_of(name, region), credentials_in(folder), _key_in(folder)
        assert files.certificate is not None
        assert files.key is not None
        key = found or KeyPair.generate()
        issued = certify(authority, key, name, servers=servers, now=now, lifetime=lifetime)
        # Before the certificate: whoever is killed between the two says the same again.
        if has_share and region is not None:
            self._copy_share(region, folder)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Neither is replaced: of two commands at once one is refused, and key and certificate are a pair.
        if found is None and not create_durably(files.key, key.private_pem(), mode=0o600):
            raise KeyExists(folder, _SOMEBODY)
        replace_durably(files.ca, authority.root_pem)
        if not create_durably(files.certificate, issued.chain_pem):
            raise KeyExists(folder, _owner(folder) or _SOMEBODY)
        return files

    def write_gateway(
        self, region: str, folder: Path, gateway: str, *, now: datetime, lifetime: timedelta
    ) -> TlsSettings:
        """The same for a gateway, with a copy of the region's share; a folder of its own without one gets it.

        Raises what `write` and `share` raise.
        """
        name = principal(PrincipalKind.GATEWAY, gateway)
        self.region(region)
        if _owner(folder) == name and not _is_share(folder / _SHARE):
            self._copy_share(region, folder)
            return credentials_in(folder)
        return self.write(region, folder, name, now=now, lifetime=lifetime, has_share=True)

    def sign_request(
        self, region: str, folder: Path, name: str, request: Path, *, now: datetime, lifetime: timedelta
    ) -> Issued:
        """A device's certificate for a request (PEM file), beside the root's in a folder; the key stays where it is.

        Raises KeyExists where the folder is somebody else's, CredentialsRefused where it has another key than the
        request, NameRefused, RequestRefused, AuthorityExpired, OSError.
        """
        authority, named = self.region(region), parse_name(name)
        if not isinstance(named, DeviceName):
            raise NameRefused(f"{name!r:.80} names no device: a device is TENANT/DEVICE")
        # One byte more than is taken, so that a longer file is refused and not cut.
        with open_file(request) as file:
            pem = file.read(MAX_REQUEST_BYTES + 1)
        if (owner := _owner(folder)) not in (None, name):
            raise KeyExists(folder, owner or _SOMEBODY)
        if (key := _key_in(folder)) is not None and key.public != read_request(pem).public_key:
            raise CredentialsRefused(folder, f"key.pem is not the key of {request}: take another folder")
        issued = authority.device(pem, *named, now=now, lifetime=lifetime)
        files = credentials_in(folder)
        assert files.certificate is not None
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_durably(files.ca, authority.root_pem)
        replace_durably(files.certificate, issued.chain_pem)
        return issued

    def renew(self, folder: Path, *, now: datetime, lifetime: timedelta, name: str | None = None) -> Issued:
        """A new certificate for the same key and name, by the same authority; only that file is replaced.

        The folder may belong to somebody else, who changes it meanwhile: its files are read once and no link is
        followed. `name`: whose certificate it must be. Only a certificate is renewed that the authority recorded, byte
        for byte, that has not ended and is on no revocation list.
        Raises CredentialsRefused with the reason, AuthorityMissing where the certificate's authority is not here, and
        what `certify` raises.
        """
        with opened_folder(folder) as descriptor:
            pem = {file: read_in(folder, descriptor, file) for file in (_CERTIFICATE, _KEY)}
            old, key = read_certificates(pem[_CERTIFICATE])[0], KeyPair.from_pem(pem[_KEY])
            authority = self._signer_of(old, folder)
            if why := self._no_renewal(old, key, authority, now, name):
                raise CredentialsRefused(folder, why)
            named = common_name(old.subject)
            issued = certify(authority, key, named, servers=server_names(old), now=now, lifetime=lifetime)
            replace_durably(Path(_CERTIFICATE), issued.chain_pem, folder=descriptor)
            return issued

    def _no_renewal(
        self, old: x509.Certificate, key: KeyPair, authority: AuthorityFolder, now: datetime, name: str | None
    ) -> str:
        """Why a certificate is not signed again; "": nothing is wrong with it."""
        issuer, named, why = authority.authority.name, common_name(old.subject), ""
        recorded = authority.recorded(old.serial_number)
        state = self.revocations().state(issuer, old.serial_number, now)
        if old.public_key() != key.public:
            why = "key.pem is not the key of certificate.pem: make a new pair elsewhere"
        elif not is_chain_to([old], [authority.authority.certificate]):
            why = f"{issuer} did not sign the certificate of {named!r} in this folder: another authority made it"
        elif recorded is None or recorded.certificate != old:
            why = f"{issuer} has no record of the certificate of {named!r} that is there: put its file back to `issued`"
        elif name is not None and named != name:
            why = f"its certificate is that of {named!r}, and not of {name!r}, as the list says"
        elif old.not_valid_after_utc <= now:
            ended = f"the certificate of {named} ended {old.not_valid_after_utc:%Y-%m-%d}"
            why = f"{ended}: delete certificate.pem, and make one for the same key by the command that made it"
        elif state not in {NOT_REVOKED, UNKNOWN}:
            why = f"the certificate of {named} is {state}, as the revocation list says: it is not renewed"
        return why

    def _signer_of(self, certificate: x509.Certificate, folder: Path) -> AuthorityFolder:
        """By its issuer's name: who renews need not know which region that was. Raises AuthorityMissing."""
        issuer = common_name(certificate.issuer)
        if issuer == PULSAR_NAME:
            return self.pulsar()
        for region in self.regions():
            if regional_name(region) == issuer:
                return self.region(region)
        raise AuthorityMissing(self.folder, f"has no authority {issuer!r:.100}, which {folder}/{_CERTIFICATE} names")

    def _authority_of(self, name: str, region: str | None) -> AuthorityFolder:
        """Who signs a name. Raises NameRefused for a region of a server of Pulsar, and for none of anybody else."""
        if name.startswith(f"{PrincipalKind.PULSAR}@"):
            if region is not None:
                raise NameRefused(f"{name} is signed by the authority of Pulsar's servers: leave out --region {region}")
            return self.pulsar()
        if region is None:
            raise NameRefused(f"{name} is signed by the authority of a region: say which, such as --region eu")
        return self.region(region)

    def _places(self) -> list[Path]:
        return [self.folder / _ROOT, self.folder / _PULSAR, *map(self._place, self.regions())]

    def _copy_share(self, region: str, folder: Path) -> None:
        if _is_share(folder / _SHARE):
            return
        share = read_file(self.share(region))
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_durably(folder / _SHARE, share, mode=0o600)

    def _place(self, region: str) -> Path:
        # It becomes a folder and a part of names in certificates.
        if not DEVICE_PATTERN.fullmatch(region):
            raise NameRefused(f"{region!r:.80} is not the name of a region: write one such as eu, {NAME_FORM}")
        return self.folder / "regions" / region


def _check_server(name: str) -> None:
    """Raises NameRefused: who lists certificates has to see what a server is."""
    named = parse_name(name)
    if not isinstance(named, PrincipalName) or named.kind not in {PrincipalKind.BROKER, PrincipalKind.PULSAR}:
        raise NameRefused(f"{name!r:.80} is no server's name: write broker@NAME or pulsar@NAME, such as broker@eu")


def _owner(folder: Path) -> str | None:
    """Whom the certificate of a folder names; None where there is none."""
    files = credentials_in(folder)
    assert files.certificate is not None
    try:
        return common_name(read_certificates(read_file(files.certificate))[0].subject)
    except FileNotFoundError:
        return None
    except IdentityError:
        return _SOMEBODY


def _key_in(folder: Path) -> KeyPair | None:
    """The key of a folder; None where there is none. Raises KeyRefused, OSError."""
    files = credentials_in(folder)
    assert files.key is not None
    try:
        return KeyPair.from_pem(read_file(files.key))
    except FileNotFoundError:
        return None
    except KeyRefused as error:
        raise KeyRefused(f"{files.key}: {error}") from error


def _is_share(file: Path) -> bool:
    try:
        return bool(read_share(file))
    except (FileNotFoundError, ValueError):
        return False
