"""The page of a secured region is followed, as far as that goes without root, systemd and Pulsar."""

from __future__ import annotations

import getpass
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from deploy.local import PortBook
from deploy.local.mosquitto import mosquitto_program
from identity import credentials_in
from identity.broker_conf import broker_command
from runtime import TlsSettings, tls_context
from tests.waiting import wait_until

pytestmark = [pytest.mark.system, pytest.mark.own_servers]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/secured-region.md").read_text(encoding="utf-8")
SYSTEM = ("/etc/waybill", "/etc/systemd/system", "/etc/logrotate.d", "/var/lib/", "/var/log/", "/run/", "/media/safe")
# What needs root: users, packages, services, other people's files; and what needs Pulsar.
BY_ROOT = ("apt-get", "systemctl", "adduser", "chown", "waybill", "edge-agent")
STEP = re.compile(r"^([$#]) (.+)\n((?:(?![$#] ).*\n)*)", re.MULTILINE)
BROKER, NAMES = ("var/lib", "var/log", "run"), ("devices", "enrolment")
# MQTT 3.1.1: a CONNECT with a clean session and the client id "probe", and the CONNACK of who is let in.
CONNECT, ACCEPTED = b"\x10\x11\x00\x04MQTT\x04\x02\x00\x0a\x00\x05probe", b"\x20\x02\x00\x00"
FILES = re.compile(r"^`([^`]+\.toml)`[^\n]*:\n\n```toml\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Machine:
    """A folder that stands for the machines: its own /etc, /var and /run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "deploy").symlink_to(ROOT / "deploy")
        for place in (*SYSTEM, "/run/fleet-access", *(f"/{a}/fleet-broker-{b}" for a in BROKER for b in NAMES)):
            (folder / place.strip("/")).mkdir(parents=True, exist_ok=True)
        for name, text in FILES.findall(PAGE):
            self.path(name).write_text(self.here(text))
        first = self.path("/etc/waybill/gateway-eu-1.toml").read_text()
        second = first.replace("eu-1", "eu-2").replace("9464", "9465")
        self.path("/etc/waybill/gateway-eu-2.toml").write_text(second)

    def path(self, name: str) -> Path:
        return self.folder / name.strip("/")

    def here(self, text: str) -> str:
        for place in SYSTEM:
            text = re.sub(rf"(?<![\w.]){place}", f"{self.folder}{place}", text)
        return text

    def run(self, command: str) -> str:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        issuer = {
            "WAYBILL_TOKEN_ISSUER": "https://keys.example",
            "WAYBILL_TOKENS": f"{self.folder}/var/lib/fleet-tokens",
        }
        ran = subprocess.run(
            ["/bin/sh", "-c", self.here(command)],
            cwd=self.folder,
            env=os.environ | {"PATH": path, "COLUMNS": "200"} | issuer,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, (command, ran.stdout, ran.stderr)
        return ran.stdout + ran.stderr


def steps() -> Iterator[tuple[str, str]]:
    """Each command of the page and what it prints there; those that need root, systemd or Pulsar are left out."""
    for block in re.findall(r"^```\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        for prompt, command, printed in STEP.findall(block):
            if not (prompt == "#" and command.startswith(BY_ROOT)) and "access status" not in command:
                yield command, printed


def is_running(log: Path) -> bool:
    return log.exists() and "running" in log.read_text()


def is_let_in(port: int, own: TlsSettings) -> bool:
    """Whether a broker takes a CONNECT with these files."""
    try:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=5) as plain,
            tls_context(own).wrap_socket(plain, server_hostname="broker.eu.example") as connection,
        ):
            connection.sendall(CONNECT)
            return connection.recv(4) == ACCEPTED
    except OSError:
        return False


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    made = Machine(tmp_path_factory.mktemp("region"))
    for command, printed in steps():
        said = made.run(command)
        wanted = re.escape(made.here(printed)).replace("…", ".+")
        assert re.fullmatch(wanted, said), (command, said)
    return made


def test_mosquitto_runs_with_what_the_page_writes_and_lets_in_whom_it_names(machine: Machine) -> None:
    book = PortBook(machine.folder / "ports.json")
    ports = {port: book.port(port) for port in ("8883", "8884", "8885")}
    running = []
    try:
        for name in NAMES:
            conf = machine.path(f"/var/lib/fleet-access/{name}.conf").read_text()
            for port, own in ports.items():
                conf = conf.replace(f"listener {port}\n", f"listener {own} 127.0.0.1\n")
            # The unit says as whom it runs.
            file = machine.folder / f"{name}.conf"
            file.write_text(f"{conf}user {getpass.getuser()}\n")
            log = machine.path(f"/var/log/fleet-broker-{name}/broker.log")
            log.touch(mode=0o660)
            running.append(subprocess.Popen(broker_command(mosquitto_program(), file, log), umask=0o007))
        for log in (machine.path(f"/var/log/fleet-broker-{name}/broker.log") for name in NAMES):
            wait_until(partial(is_running, log))
            # The access daemon is in the broker's group.
            pid = machine.path(f"/run/{log.parent.name}/pid")
            assert pid.stat().st_mode & log.stat().st_mode & 0o040
        tls = machine.path("/etc/waybill/tls/gateway-eu-1")
        one, nobody = credentials_in(tls), TlsSettings(ca=tls / "ca.pem")
        assert machine.path("/run/fleet-access/guard.sock").is_socket()
        assert is_let_in(ports["8883"], one)
        assert not is_let_in(ports["8883"], nobody)
        assert is_let_in(ports["8885"], one)
        assert not is_let_in(ports["8884"], nobody), "it has no token"
    finally:
        for process in running:
            process.terminate()
            process.wait(10)
