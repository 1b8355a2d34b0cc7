"""A throw-away authority and the certificates of a benchmark: one for each name, elliptic keys, valid for a day."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from deploy.local.mosquitto import TlsFiles

_HOST = "127.0.0.1"


class Certificates:
    """Signs certificates for common names, and writes them into a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("Waybill benchmark authority")
        self._number = 0
        signed = self._builder(self._name, self._key).add_extension(x509.BasicConstraints(True, None), critical=True)
        self.ca = folder / "ca.pem"
        self.ca.write_bytes(_pem(signed.sign(self._key, hashes.SHA256())))

    def issue(self, name: str) -> TlsFiles:
        """Files for a server on loopback, or a client, of this common name."""
        self._number += 1
        key = ec.generate_private_key(ec.SECP256R1())
        host = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(_HOST)), x509.DNSName("localhost")])
        signed = self._builder(_name(name), key).add_extension(host, critical=False)
        certificate = self._folder / f"{self._number}.pem"
        certificate.write_bytes(_pem(signed.sign(self._key, hashes.SHA256())))
        written = certificate.with_suffix(".key")
        written.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return TlsFiles(ca=self.ca, certificate=certificate, key=written)

    def _builder(self, name: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return x509.CertificateBuilder(
            issuer_name=self._name,
            subject_name=name,
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=now - timedelta(minutes=5),
            not_valid_after=now + timedelta(days=1),
        )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
