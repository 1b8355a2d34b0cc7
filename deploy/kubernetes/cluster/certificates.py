"""Keys, certificates and access files of the cluster's components."""

from __future__ import annotations

import ipaddress
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from deploy.kubernetes.cluster.layout import API_PORT, API_SERVICE_ADDRESS, CONTROL_ADDRESS

_LIFE = timedelta(days=365)
_INSIDE = f"https://{CONTROL_ADDRESS}:{API_PORT}"
OUTSIDE = f"https://127.0.0.1:{API_PORT}"
_API_NAMES = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)


@dataclass(frozen=True)
class Authority:
    """The cluster's authority in a folder."""

    folder: Path
    key: rsa.RSAPrivateKey
    certificate: x509.Certificate

    @classmethod
    def in_folder(cls, folder: Path) -> Authority:
        """A new one, with the key of service accounts."""
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        key = _new_key()
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "cluster")])
        certificate = (
            _begun(name, name, key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        _write(folder, "ca", key, certificate)
        (folder / "sa.key").write_bytes(_pem(_new_key()))
        return cls(folder, key, certificate)

    def issue(self, file: str, common_name: str, organisation: str = "", *, serves: bool = False) -> None:
        """Write `FILE.crt` and `FILE.key`; with `serves` it is also the one of the API server."""
        attributes = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
        if organisation:
            attributes.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, organisation))
        key = _new_key()
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH])
        builder = _begun(x509.Name(attributes), self.certificate.subject, key.public_key())
        builder = builder.add_extension(usage, critical=False)
        if serves:
            addresses = [ipaddress.ip_address(one) for one in (CONTROL_ADDRESS, "127.0.0.1", API_SERVICE_ADDRESS)]
            names = [*map(x509.DNSName, _API_NAMES), *map(x509.IPAddress, addresses)]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        _write(self.folder, file, key, builder.sign(self.key, hashes.SHA256()))

    def access_file(self, file: str, common_name: str, organisation: str = "", server: str = _INSIDE) -> Path:
        """Issue a certificate, and write the file with which its holder reaches the API server."""
        self.issue(file, common_name, organisation)
        user = {"client-certificate": f"{self.folder}/{file}.crt", "client-key": f"{self.folder}/{file}.key"}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "cluster",
            "clusters": [
                {"name": "cluster", "cluster": {"server": server, "certificate-authority": f"{self.folder}/ca.crt"}}
            ],
            "users": [{"name": file, "user": user}],
            "contexts": [{"name": "cluster", "context": {"cluster": "cluster", "user": file}}],
        }
        path = self.folder / f"{file}.conf"
        path.write_text(json.dumps(content), encoding="utf-8")
        return path


def _begun(subject: x509.Name, issuer: x509.Name, key: rsa.RSAPublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    begun = x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=key)
    begun = begun.serial_number(x509.random_serial_number())
    return begun.not_valid_before(now - timedelta(minutes=5)).not_valid_after(now + _LIFE)


def _new_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def _pem(key: rsa.RSAPrivateKey) -> bytes:
    form = serialization.PrivateFormat.TraditionalOpenSSL
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _write(folder: Path, file: str, key: rsa.RSAPrivateKey, certificate: x509.Certificate) -> None:
    (folder / f"{file}.key").write_bytes(_pem(key))
    (folder / f"{file}.key").chmod(0o600)
    (folder / f"{file}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
