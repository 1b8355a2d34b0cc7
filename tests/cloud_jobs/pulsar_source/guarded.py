"""A cluster that lets nobody in without TLS and a token."""

import base64
import hashlib
import hmac
import json
import secrets
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

import httpx
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from pydantic import SecretStr

from deploy.local import PulsarCluster, PulsarSettings, free_port
from tests.cloud_jobs.pulsar_source.world import eventually
from tests.pulsar_clients import open_client
from waybill.pulsar.pulsar_client import PulsarAccess


class GuardedCluster(PulsarCluster):
    """TLS on both ports, tokens for everybody, and rights only for those who were given them."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.certificate, key = folder / "broker.pem", folder / "broker.key"
        certify(self.certificate, key)
        self._secret = secrets.token_bytes(32)
        self.tls_broker_port, self.tls_web_port = free_port(), free_port()
        plugin = "org.apache.pulsar"
        super().__init__(
            "guarded",
            folder,
            settings=PulsarSettings(
                broker={
                    "brokerServicePortTls": self.tls_broker_port,
                    "webServicePortTls": self.tls_web_port,
                    "tlsCertificateFilePath": str(self.certificate),
                    "tlsKeyFilePath": str(key),
                    "tlsTrustCertsFilePath": str(self.certificate),
                    "authenticationEnabled": "true",
                    "authorizationEnabled": "true",
                    "authenticationProviders": f"{plugin}.broker.authentication.AuthenticationProviderToken",
                    "tokenSecretKey": "data:;base64," + base64.b64encode(self._secret).decode(),
                    "superUserRoles": "admin",
                    "brokerClientAuthenticationPlugin": f"{plugin}.client.impl.auth.AuthenticationToken",
                    "brokerClientAuthenticationParameters": f"token:{self.token('admin')}",
                }
            ),
        )

    @property
    def text(self) -> str:
        """For the option `clusters`, by the guarded ports."""
        return f"guarded=pulsar+ssl://127.0.0.1:{self.tls_broker_port}|https://127.0.0.1:{self.tls_web_port}"

    def token(self, role: str, expires_s: float | None = None) -> str:
        """A token (JWT, HS256) of a role; it ends with that second since 1970."""
        head, body = ({"alg": "HS256", "typ": "JWT"}, {"sub": role} | ({"exp": int(expires_s)} if expires_s else {}))
        text = ".".join(encoded(json.dumps(part).encode()) for part in (head, body))
        return f"{text}.{encoded(hmac.digest(self._secret, text.encode(), hashlib.sha256))}"

    def probe(self) -> bool:
        try:
            headers = {"Authorization": f"Bearer {self.token('admin')}"}
            return httpx.get(f"{self.admin_url}/admin/v2/brokers/health", headers=headers, timeout=5).is_success
        except httpx.HTTPError:
            return False

    def allow_reader(self) -> None:
        """The role `reader` may consume in public/default."""
        headers = {"Authorization": f"Bearer {self.token('admin')}"}
        path = f"{self.admin_url}/admin/v2/namespaces/public/default/permissions/reader"
        eventually("the namespace is there", lambda: httpx.post(path, json=["consume"], headers=headers).is_success)

    def fill(self, topic: str, messages: int) -> None:
        """Creates a topic of two partitions with that many numbered messages."""
        headers = {"Authorization": f"Bearer {self.token('admin')}"}
        path = f"{self.admin_url}/admin/v2/{topic.replace('://', '/')}/partitions"
        assert httpx.put(path, json=2, headers=headers, timeout=20).is_success
        client = open_client(self.service_url, PulsarAccess(token=SecretStr(self.token("admin"))))
        producer = client.create_producer(topic, block_if_queue_full=True)
        for number in range(messages):
            producer.send_async(str(number).encode(), None, partition_key=str(number))
        producer.flush()
        client.close()


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def certify(certificate: Path, key: Path) -> None:
    """A certificate of its own authority for 127.0.0.1, valid for a day."""
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "broker")])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    )
    certificate.write_bytes(builder.sign(private, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    key.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
