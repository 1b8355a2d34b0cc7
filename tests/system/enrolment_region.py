"""A region in which devices are enrolled: both real brokers, an authority, and the service, on a registry in memory."""

from __future__ import annotations

import secrets
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

from deploy.local import EnrolmentBroker, EnrolmentBrokerFiles, MosquittoBroker, MosquittoSecurity, TlsFiles
from gateway.access.enrolment import EnrolmentCore, EnrolmentRates, OpenTokens
from gateway.access.enrolment_service import EnrolmentService, enrolment_rules, name_at_enrolment
from tests.gateway.access.known_devices import KnownDevices
from waybill.daemon.tls import TlsSettings
from waybill.identity.authority import KeyPair
from waybill.identity.authority_folder import AuthorityFolder
from waybill.identity.broker_conf import broker_rules
from waybill.identity.claims import broker_password, make_token, password_file
from waybill.identity.registry import Claim, DeviceChange, DeviceEntry, expect
from waybill.mqtt.broker_settings import BrokerSettings

YEAR = timedelta(days=365)


class Unlimited(EnrolmentRates):
    def try_sender(self, sender: str, now_s: float) -> bool:
        return True

    def try_tenant(self, tenant: str, now_s: float) -> bool:
        return True


class EnrolmentRegion:
    """Starts at once; `published` is what Pulsar would have. `lifetime`: of the certificates that it gives."""

    def __init__(self, folder: Path, lifetime: timedelta = timedelta(days=30)) -> None:
        now = datetime.now(UTC)
        self.folder, self.lifetime = folder, lifetime
        root = AuthorityFolder.create_root(folder / "root", "Waybill root", now=now, lifetime=10 * YEAR)
        self.authority = AuthorityFolder.create_regional(
            folder / "eu", root, "eu", servers=["localhost", "127.0.0.1"], now=now, lifetime=YEAR
        )
        self.factory = AuthorityFolder.create_root(folder / "factory", "Factory", now=now, lifetime=10 * YEAR)
        self.root = folder / "root.pem"
        self.root.write_bytes(root.root_pem)
        self.secret = folder / "access.secret"
        self.secret.write_text(secrets.token_urlsafe(32))
        self.name = name_at_enrolment("eu", self.secret.read_text())
        self.own = {self.name: broker_password(self.secret.read_text(), secrets.token_bytes(12))}
        self.rules, self.passwords = folder / "enrol.acl", folder / "enrol.passwords"
        self.rules.write_text(enrolment_rules(self.name))
        self.published: dict[str, DeviceEntry] = {}
        self.history: list[DeviceEntry] = []
        self.write_passwords()
        server = self.files("server", server=True)
        security = MosquittoSecurity(tls=server, rules=broker_rules(1, "eu", ["eu-1"], []))
        self.data = MosquittoBroker("eu", folder / "data", security=security)
        files = EnrolmentBrokerFiles(
            certificate=server.certificate,
            key=server.key,
            rules=self.rules,
            passwords=self.passwords,
            factory_ca=self.factory.folder / "root.pem",
        )
        self.broker = EnrolmentBroker("eu", folder / "enrol", files)
        for one in (self.data, self.broker):
            one.start()
        for one in (self.data, self.broker):
            one.wait()
        self.may_publish = threading.Event()
        self.may_publish.set()
        self.start_service()

    def files(self, name: str, *, server: bool = False, authority: AuthorityFolder | None = None) -> TlsFiles:
        key, signer, now = KeyPair.generate(), authority or self.authority, datetime.now(UTC)
        if server:
            issued = signer.server(key, name, ["localhost", "127.0.0.1"], now=now, lifetime=YEAR)
        else:
            issued = signer.client(key, name, now=now, lifetime=YEAR)
        made = TlsFiles.model_construct(
            ca=self.root, certificate=self.folder / f"{name}.pem", key=self.folder / f"{name}.key"
        )
        made.certificate.write_bytes(issued.chain_pem)
        made.key.write_bytes(key.private_pem())
        return made

    def start_service(self) -> None:
        """A service that knows what was published, and nothing else: as after SIGKILL."""
        self.book = KnownDevices()
        for entry in self.published.values():
            self.book.put(entry)
        book = cast("Any", self.book)
        self.desk = EnrolmentCore("eu", self.lifetime, book, self.authority, Unlimited(), lambda _, __: None)
        own = self.files("access@eu")
        tls = TlsSettings(ca=self.root, certificate=own.certificate, key=own.key)
        claims = BrokerSettings(
            port=self.broker.port,
            username=self.name,
            password_file=self.secret,
            tls=TlsSettings(ca=self.root),
            backoff_first_s=0.1,
        )
        devices = BrokerSettings(port=self.data.port, tls=tls, backoff_first_s=0.1)
        self.service = EnrolmentService(self.desk, self._publish, name="access@eu", claims=claims, devices=devices)
        self.service.start()

    def _publish(self, entry: DeviceEntry) -> None:
        if not self.may_publish.is_set():
            raise OSError("Pulsar is away")
        self.take(entry)

    def take(self, entry: DeviceEntry) -> None:
        self.published[entry.name] = entry
        self.history.append(entry)
        self.book.put(entry)

    def expect_token(self, device: str, life: timedelta = timedelta(days=7)) -> str:
        """A token for a device of acme; its text."""
        token, now = make_token(), datetime.now(UTC)
        claim = Claim(id=token.id, password_hash=token.password_hash, until=now + life)
        self._expect(device, claim)
        return token.text.get_secret_value()

    def expect_factory(self, device: str, serial: str) -> TlsFiles:
        """A device of acme that comes with the certificate of its factory."""
        self._expect(device, Claim(id=serial))
        return self.files(f"claim@{serial}", authority=self.factory)

    def _expect(self, device: str, claim: Claim) -> None:
        change = DeviceChange(datetime.now(UTC), "ana", "new bus")
        entry = expect("acme", device, region="eu", claim=claim, change=change)
        self.published[entry.name] = entry
        self.book.put(entry)
        self.write_passwords()
        self.broker.signal_reload()

    def write_passwords(self) -> None:
        tokens, now = OpenTokens("eu"), datetime.now(UTC)
        for entry in self.published.values():
            tokens.take(entry, now)
        self.passwords.write_bytes(password_file(tokens.passwords(now) | self.own))

    def close(self) -> None:
        self.service.close()
        for one in (self.broker, self.data):
            one.stop()
