"""A thief with the key of a regional authority stands in the way of clients of Pulsar and of an agent."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pulsar
import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509 import CertificateBuilder
from pydantic import SecretStr

from geo.replication.admin import AdminClient
from geo.replication.errors import ReplicationError
from tests.page_sessions import run_line
from waybill.daemon.tls import TlsSettings
from waybill.identity.authority import Authority, KeyPair, issue_server
from waybill.identity.pki_folder import PkiFolder, credentials_in, write_credentials
from waybill.mqtt.broker_settings import BrokerSettings
from waybill.mqtt.mqtt_client import MqttClient, MqttSessionOptions
from waybill.pulsar.pulsar_client import PulsarAccess, close_quietly, open_pulsar_client

pytestmark = [pytest.mark.system, pytest.mark.nightly]

RUNBOOK = Path(__file__).parents[2] / "docs/runbooks/stolen-authority.md"
LIFE, TOKEN, HOST = timedelta(days=30), "e30.e30.c2ln", "localhost"
Client = Callable[[Path, int], None]
"""What connects to a port of this machine, and trusts the authorities of a file."""


class Office:
    """An operator's authorities: `us` may sign servers of us.example, `eu` those of this machine."""

    def __init__(self, folder: Path) -> None:
        now = datetime.now(UTC)
        self.folder, self.pki = folder, PkiFolder(folder / "pki")
        root = self.pki.create_root(now=now, lifetime=3 * LIFE)
        self.pki.create_pulsar(now=now, lifetime=3 * LIFE)
        self.pki.create_region(root, "us", servers=["us.example"], now=now, lifetime=2 * LIFE)
        self.pki.create_region(root, "eu", servers=[HOST, "127.0.0.1"], now=now, lifetime=2 * LIFE)
        self.root_file, self.pulsar_file = (
            folder / "pki/root-authority/root.pem",
            folder / "pki/pulsar-authority/root.pem",
        )

    def real(self, name: str, region: str | None) -> TlsSettings:
        place = self.folder / f"real-{name}-{region}"
        if place.exists():
            return credentials_in(place)
        return self.pki.write(region, place, name, servers=[HOST], now=datetime.now(UTC), lifetime=LIFE)

    def stolen(self, name: str, region: str) -> TlsSettings:
        """A certificate for this machine as a thief makes it: the program that signs it asks for no constraints."""
        authority = self.pki.region(region).authority
        return forged(self.folder / f"stolen-{name}-{region}", authority, name)


def forged(place: Path, authority: Authority, name: str) -> TlsSettings:
    now, own = datetime.now(UTC), authority.certificate
    builder = CertificateBuilder().subject_name(own.subject).issuer_name(own.subject).serial_number(9)
    builder = builder.public_key(authority.key.public).not_valid_before(now - LIFE).not_valid_after(now + LIFE)
    for extension in own.extensions:
        if extension.oid.dotted_string != "2.5.29.30":  # name constraints
            builder = builder.add_extension(extension.value, critical=extension.critical)
    free = Authority(builder.sign(authority.key.private, hashes.SHA256()), authority.key)
    key = KeyPair.generate()
    issued = issue_server(free, key.public, name, [HOST], now=now, serial=7, lifetime=LIFE)
    whole = b"".join((issued.chain_pem, *(one.public_bytes(serialization.Encoding.PEM) for one in authority.chain)))
    return write_credentials(place, root_pem=b"", chain_pem=whole, key=key)


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Office:
    return Office(tmp_path_factory.mktemp("office"))


def received(files: TlsSettings, connect: Callable[[int], None]) -> bytes:
    """What a server with this certificate gets of a client; nothing where the client refuses it."""
    assert files.certificate is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        listener.settimeout(20)
        first = pool.submit(first_bytes, listener, context)
        connect(listener.getsockname()[1])
        return first.result(30)


def first_bytes(listener: socket.socket, context: ssl.SSLContext) -> bytes:
    plain, _ = listener.accept()
    plain.settimeout(10)
    with suppress(OSError), plain, context.wrap_socket(plain, server_side=True) as secure:
        return secure.recv(4096)
    return b""


def by_pulsar(ca: Path, port: int) -> None:
    """Pulsar's own C++ client, which sends its token in the first message."""
    access = PulsarAccess(token=SecretStr(TOKEN), tls_ca=ca)
    client = open_pulsar_client(f"pulsar+ssl://{HOST}:{port}", access, timeout_s=2)
    try:
        with suppress(pulsar.PulsarException):
            client.create_producer("persistent://public/default/x")
    finally:
        close_quietly(client)


def by_admin(ca: Path, port: int) -> None:
    access = PulsarAccess(token=SecretStr(TOKEN), tls_ca=ca)
    client = AdminClient("hq", f"https://{HOST}:{port}", access=access, timeout_s=3, unavailable_s=0)
    with client, suppress(ReplicationError):
        client.get("tenants")


def by_agent(ca: Path, port: int) -> None:
    """The client by which agents and gateways reach a region's broker."""
    settings = BrokerSettings(host=HOST, port=port, tls=TlsSettings(ca=ca))
    client = MqttClient(settings, MqttSessionOptions(client_id="acme/bus-1"))
    with suppress(OSError):
        client.start()
        client.flush()
    with suppress(OSError):
        client.disconnect()


@pytest.mark.parametrize(("client", "shown"), [(by_pulsar, TOKEN), (by_admin, TOKEN)], ids=["pulsar", "admin"])
def test_no_regional_authority_makes_a_server_of_pulsar(office: Office, client: Client, shown: str) -> None:
    for region in ("eu", "us"):
        files = office.stolen("pulsar@hq", region)
        assert received(files, lambda port: client(office.pulsar_file, port)) == b"", region
    # Who trusts the root of the regions at Pulsar gives the token away: that is what its own root is for.
    trusting = office.stolen("pulsar@hq", "eu")
    assert shown.encode() in received(trusting, lambda port: client(office.root_file, port))
    real = office.real("pulsar@hq", None)
    assert shown.encode() in received(real, lambda port: client(office.pulsar_file, port))


def test_an_agent_takes_no_broker_of_the_authority_of_another_region(office: Office) -> None:
    stolen, real = office.stolen("broker@eu", "us"), office.real("broker@eu", "eu")
    assert received(stolen, lambda port: by_agent(office.root_file, port)) == b""
    assert b"MQTT" in received(real, lambda port: by_agent(office.root_file, port))


def test_the_runbook_s_file_refuses_a_stolen_authority_and_takes_the_one_that_follows_it(tmp_path: Path) -> None:
    """The thief may be the broker of the region whose key it has, until a device has the new file."""
    run_at(
        tmp_path,
        "mkdir -p safe machine/pki/regions waybill/tls home",
        "waybill pki init",
        "waybill pki pulsar",
        f"waybill pki region eu --servers {HOST}",
        *(f"waybill pki issue pulsar@{name} --at {HOST} --out tls/pulsar-{name}" for name in ("eu", "hq")),
        f"waybill pki issue pulsar@keys --at {HOST} --out tls/keys",
        f"waybill pki issue broker@eu --region eu --at {HOST} --out tls/broker",
        "waybill pki issue access@eu --region eu --out tls/access",
        *(f"waybill pki issue gateway@eu-{name} --region eu --out tls/gateway-eu-{name}" for name in (1, 2)),
        "mv pki/root-authority/authority.key safe/",
        "mv pki/regions/eu machine/pki/regions/",
    )
    stolen = PkiFolder(tmp_path / "machine/pki").region("eu").authority
    thief = forged(tmp_path / "thief", stolen, "broker@eu")
    assert b"MQTT" in received(thief, lambda port: by_agent(tmp_path / "pki/root-authority/root.pem", port))
    region, servers, root = re.split(r"^## ", RUNBOOK.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    run_at(tmp_path, *commands(region))
    # What step 5 brings to the region's machine: one share for all gateways, and an authority that signed it all.
    place = tmp_path / "waybill/tls"
    assert len({(place / f"gateway-eu-{name}/share").read_bytes() for name in (1, 2)}) == 1
    assert PkiFolder(tmp_path / "machine/pki").region("eu").authority.certificate != stolen.certificate
    ca, real = place / "gateway-eu-2/ca.pem", credentials_in(place / "broker")
    assert received(thief, lambda port: by_agent(ca, port)) == b""
    assert b"MQTT" in received(real, lambda port: by_agent(ca, port))
    former = credentials_in(tmp_path / "tls/pulsar-hq")
    run_at(tmp_path, *commands(servers))
    new = tmp_path / "pki/pulsar-authority/root.pem"
    kept = credentials_in(tmp_path / "former-pulsar" / former.ca.parent.name)
    assert received(kept, lambda port: by_pulsar(new, port)) == b""
    assert TOKEN.encode() in received(former, lambda port: by_pulsar(new, port))
    run_at(tmp_path, *commands(root))
    new_root = tmp_path / "pki/root-authority/root.pem"
    assert received(real, lambda port: by_agent(new_root, port)) == b""
    assert b"MQTT" in received(credentials_in(tmp_path / "tls/broker"), lambda port: by_agent(new_root, port))
    assert not (new_root.parent / "authority.key").exists()


def commands(section: str) -> list[str]:
    """All but those that need users, systemd or an access daemon's settings."""
    found = re.findall(r"^ *[$#] (?!systemctl|chown|sudo)(.+)$", section, re.MULTILINE)
    assert found
    return [re.sub(r"[a-z]+\.(eu\.|hq\.)?example", HOST, one) for one in found]


def run_at(folder: Path, *lines: str) -> None:
    for line in lines:
        here = line.replace("/media/safe", "safe").replace("/var/lib/fleet-access", "machine")
        # The region's machine is in folders beside the office's.
        here = (
            here.replace(f"scp root@{HOST}:", "cp ")
            .replace("/var/lib/stolen-", "home/stolen-")
            .replace("/etc/waybill", "waybill")
        )
        ran = run_line(here, folder)
        assert ran.returncode == 0, (line, ran.stdout, ran.stderr)
