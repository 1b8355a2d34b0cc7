"""The stack's own authorities: a root for this folder alone, and certificates of whoever takes part in the stack."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from deploy.local.mosquitto import TlsFiles
from waybill.daemon.durable_file import replace_durably
from waybill.identity.authority import KeyPair
from waybill.identity.authority_folder import AuthorityFolder, IssuedCertificate, certify
from waybill.identity.errors import AuthorityMissing
from waybill.identity.pki_folder import PkiFolder, credentials_in, write_credentials

__all__ = ["LocalAuthority"]

_AUTHORITY_LIFE, _LIFE = timedelta(days=3650), timedelta(days=365)
_LOOPBACK = ("localhost", "127.0.0.1")


class LocalAuthority:
    """Authorities that are made once for a folder, and what they signed there.

    `file` is the root's certificate (PEM), which everybody trusts at a region's brokers; `pulsar_file` that of Pulsar's
    servers, whom clients of Pulsar trust; `pki` the folder for `waybill pki`.
    A certificate that was made before is taken again until half of its life is over.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.pki = PkiFolder(self._folder / "pki")
        self.file = self._folder / "authority.pem"
        if not self.pki.root_certificate.exists():
            self.pki.create_root(name="Waybill local root", now=_now(), lifetime=_AUTHORITY_LIFE)
        try:
            self._pulsar = self.pki.pulsar()
        except AuthorityMissing:
            self._pulsar = self.pki.create_pulsar(now=_now(), lifetime=_AUTHORITY_LIFE)
        # Copies at paths that do not depend on how the authorities keep their files.
        self.pulsar_file = self._folder / "pulsar-authority.pem"
        replace_durably(self.file, self.pki.root_certificate.read_bytes())
        replace_durably(self.pulsar_file, self._pulsar.root_pem)

    def region(self, region: str) -> AuthorityFolder:
        """The authority of a region, made when it is first asked for."""
        try:
            return self.pki.region(region)
        except AuthorityMissing:
            root, now = self.pki.root(), _now()
            return self.pki.create_region(root, region, servers=_LOOPBACK, now=now, lifetime=_AUTHORITY_LIFE)

    def server(self, name: str, region: str = "local") -> TlsFiles:
        """The certificate and key of a region's server on 127.0.0.1 and localhost, such as `broker@eu`."""
        return self._made(self.region(region), region, name, _LOOPBACK)

    def pulsar_server(self, name: str) -> TlsFiles:
        """Those of a server of Pulsar there, such as `pulsar@eu`, by the authority of Pulsar's servers."""
        return self._made(self._pulsar, "pulsar-servers", name, _LOOPBACK)

    def client(self, name: str, region: str = "local") -> TlsFiles:
        """The certificate and key of a device (`acme/bus-1`) or of another client (`gateway@eu-1`)."""
        return self._made(self.region(region), region, name)

    def share(self, region: str) -> Path:
        """The file by which the gateways of a region share batches, their `mqtt.share_file`."""
        return self.pki.share(region)

    def _made(self, authority: AuthorityFolder, place_name: str, name: str, servers: Sequence[str] = ()) -> TlsFiles:
        place, now = self._folder / "certificates" / place_name / name, _now()
        files = credentials_in(place)
        assert files.certificate is not None
        assert files.key is not None
        # Where it has half of its life left a stack that is started again keeps it: its clients may still run.
        if not files.certificate.exists() or IssuedCertificate.read(files.certificate).not_after < now + _LIFE / 2:
            key = KeyPair.generate()
            issued = certify(authority, key, name, servers=servers, now=now, lifetime=_LIFE)
            write_credentials(place, root_pem=authority.root_pem, chain_pem=issued.chain_pem, key=key)
        return TlsFiles(ca=files.ca, certificate=files.certificate, key=files.key)


def _now() -> datetime:
    return datetime.now(UTC)
