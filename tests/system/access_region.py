"""A region with an access daemon for tests: its authority, a real Mosquitto as the daemon looks after it, devices."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from deploy.demo.processes import open_session
from deploy.local import free_port
from gateway.access.config import AccessEndpoint
from gateway.access.status import AccessStatus, read_access_status
from gateway.errors import NoAnswer
from tests.waiting import PATIENCE, wait_until
from waybill.identity.authority import KeyPair, make_request
from waybill.identity.authority_folder import AuthorityFolder
from waybill.identity.broker_conf import (
    MosquittoSettings,
    ServerFiles,
    broker_access_lines,
    broker_command,
    broker_lines,
    broker_log_lines,
    conf_text,
    device_listener_lines,
)
from waybill.identity.pki_folder import write_credentials

LIFE = timedelta(days=30)


def new_root(folder: Path) -> AuthorityFolder:
    return AuthorityFolder.create_root(folder, "Test root", now=datetime.now(UTC), lifetime=LIFE)


class AccessRegion:
    """One region. `trust`: whose registry entries it takes. Nothing runs before `start_daemon` and `start_broker`."""

    def __init__(
        self, name: str, folder: Path, root: AuthorityFolder, service_url: str, trust: str = "unsigned = true"
    ) -> None:
        self.name, self.folder = name, folder
        now = datetime.now(UTC)
        servers = ["127.0.0.1"]
        place = folder / "authority"
        self.authority = AuthorityFolder.create_regional(place, root, name, servers=servers, now=now, lifetime=LIFE)
        key = KeyPair.generate()
        server = self.authority.server(key, f"broker@{name}", servers, now=now, lifetime=LIFE)
        self.server_tls = write_credentials(
            folder / "broker", root_pem=root.root_pem, chain_pem=server.chain_pem, key=key
        )
        self.service_url = service_url
        self.port, self.endpoint = free_port(), AccessEndpoint(port=free_port())
        self.socket, self.control = folder / "guard.sock", folder / "control"
        self.log_file = folder / "mosquitto.log"
        self.config = folder / "access.toml"
        self.config.write_text(f"""
            region = "{name}"
            insecure = true
            gateways = ["{name}-1"]
            [broker]
            rules_file = "{folder}/rules"
            revocation_file = "{folder}/lists.pem"
            password_file = "{folder}/passwords"
            guard_secret_file = "{folder}/secret"
            guard_socket = "{self.socket}"
            control_socket = "{self.control}"
            log_file = "{self.log_file}"
            [registry]
            tenants = ["acme", "zeta"]
            service_url = "{service_url}"
            {trust}
            [authority]
            folder = "{folder}/authority"
            [status]
            port = {self.endpoint.port}
            """)
        self.broker: subprocess.Popen[bytes] | None = None
        self.daemon: subprocess.Popen[bytes] | None = None
        self.device_key = KeyPair.generate()

    def prepare(self) -> None:
        self._command("prepare").wait(60 * PATIENCE)

    def start_broker(self) -> None:
        self.prepare()
        conf = self.folder / "mosquitto.conf"
        conf.write_text(conf_text(self._lines()))
        self.socket.unlink(missing_ok=True)
        program = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        assert program, "Mosquitto is not installed"
        with self.log_file.open("ab") as log:
            command = broker_command(program, conf, self.log_file, self.control)
            self.broker = subprocess.Popen(command, stdout=log, stderr=log)
        wait_until(self.socket.exists, 20)

    def start_daemon(self, *, wait: bool = True) -> None:
        self.daemon = self._command("run")
        if wait:
            wait_until(lambda: (found := self.status()) is not None and found.healthy, 60)

    def stop(self) -> None:
        for process in (self.daemon, self.broker):
            if process is not None:
                process.terminate()
                process.wait(20 * PATIENCE)

    def kill_daemon(self) -> None:
        assert self.daemon is not None
        self.daemon.send_signal(signal.SIGKILL)
        self.daemon.wait(20 * PATIENCE)

    def status(self) -> AccessStatus | None:
        try:
            return read_access_status(self.endpoint)
        except NoAnswer:
            return None

    def certificate(self, tenant: str, device: str) -> ssl.SSLContext:
        """What a device of this region connects with, signed as by hand."""
        request = make_request(self.device_key, f"{tenant}/{device}")
        issued = self.authority.device(request, tenant, device, now=datetime.now(UTC), lifetime=LIFE)
        files = write_credentials(
            self.folder / "device", root_pem=self.authority.root_pem, chain_pem=issued.chain_pem, key=self.device_key
        )
        context = ssl.create_default_context(cafile=str(files.ca))
        context.load_cert_chain(str(files.certificate), str(files.key))
        return context

    def connect(self, context: ssl.SSLContext) -> socket.socket:
        """A session of a device. Raises OSError if it is refused."""
        return open_session(self.port, context, 10)

    def is_refused(self, context: ssl.SSLContext) -> bool:
        return is_refused_at(self.port, context)

    def _command(self, command: str) -> subprocess.Popen[bytes]:
        with (self.folder / "access.log").open("ab") as log:
            arguments = [sys.executable, "-m", "gateway", "access", command, "--config", str(self.config)]
            return subprocess.Popen(arguments, stdout=log, stderr=log)

    def _lines(self) -> list[str]:
        tls = self.server_tls
        assert tls.certificate is not None
        assert tls.key is not None
        return [
            *broker_lines(self.port, "127.0.0.1", self.folder, MosquittoSettings()),
            *device_listener_lines(ServerFiles(tls.certificate, tls.key), tls.ca, self.folder / "rules"),
            *broker_access_lines(
                revocations=self.folder / "lists.pem",
                passwords=self.folder / "passwords",
                pid_file=None,
                guard_socket=self.socket,
            ),
            *broker_log_lines(),
            f"user {getpass.getuser()}",
        ]


def is_refused_at(port: int, context: ssl.SSLContext) -> bool:
    try:
        open_session(port, context, 10).close()
    except OSError:
        return True
    return False


def has_ended(session: socket.socket) -> bool:
    """Whether the broker ends a session; it waits for 10 s."""
    session.settimeout(10)
    with contextlib.suppress(OSError):
        while session.recv(100):
            pass
        return True
    return False
