"""The stack's own certificate authority: a root for this folder alone, and certificates of servers on loopback."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from deploy.local.mosquitto import TlsFiles
from runtime import replace_durably

__all__ = ["LocalAuthority"]

_ROOT_LIFE = timedelta(days=3650)
_SERVER_LIFE = timedelta(days=365)
_SKEW = timedelta(minutes=5)


class LocalAuthority:
    """A root that is made once for a folder, and signs certificates of servers on 127.0.0.1 and localhost."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder = folder
        self.file = folder / "authority.pem"
        key = folder / "authority.key"
        if not (self.file.exists() and key.exists()):
            replace_durably(key, _private_pem(ec.generate_private_key(ec.SECP256R1())), mode=0o600)
            self._key = _loaded(key)
            root = _begun(_named("Waybill local authority"), self._key.public_key(), _ROOT_LIFE)
            root = root.issuer_name(_named("Waybill local authority"))
            root = root.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            replace_durably(self.file, _pem(root.sign(self._key, hashes.SHA256())))
        self._key = _loaded(key)

    def server(self, name: str) -> TlsFiles:
        """A new certificate and key of a server, written into the folder."""
        key = ec.generate_private_key(ec.SECP256R1())
        places = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
        built = (
            _begun(_named(name), key.public_key(), _SERVER_LIFE)
            .issuer_name(_named("Waybill local authority"))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            # Brokers are clients of each other too.
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .add_extension(x509.SubjectAlternativeName(places), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        stem = name.replace("@", "-")
        certificate, private = self._folder / f"{stem}.pem", self._folder / f"{stem}.key"
        replace_durably(private, _private_pem(key), mode=0o600)
        replace_durably(certificate, _pem(built.sign(self._key, hashes.SHA256())))
        return TlsFiles(ca=self.file, certificate=certificate, key=private)


def _begun(subject: x509.Name, key: ec.EllipticCurvePublicKey, life: timedelta) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + life)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _loaded(file: Path) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(file.read_bytes(), password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)  # written by us
    return key
