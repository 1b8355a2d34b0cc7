"""The page of a secured region is followed, as far as that goes without root, systemd and Pulsar."""

from __future__ import annotations

import getpass
import re
import socket
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from deploy.local import PortBook
from deploy.local.mosquitto import mosquitto_program
from geo.replication import Topology
from tests.page_sessions import run_line
from tests.waiting import PATIENCE, wait_until
from waybill.daemon.tls import TlsSettings, tls_context
from waybill.identity.broker_conf import broker_command
from waybill.identity.pki_folder import credentials_in
from waybill.settings import load

pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.own_servers]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/secured-region.md").read_text(encoding="utf-8")
SYSTEM = ("/etc/waybill", "/etc/systemd/system", "/etc/logrotate.d", "/var/lib/", "/var/log/", "/run/", "/media/safe")
# What needs root: users, packages, services, other people's files; and what needs Pulsar.
BY_ROOT = ("for file", "apt-get", "systemctl", "adduser", "chown", "waybill", "edge-agent")
STEP = re.compile(r"^([$#]) (.+)\n((?:(?![$#] ).*\n)*)", re.MULTILINE)
BROKER, NAMES = ("var/lib", "var/log", "run"), ("devices", "enrolment")
# MQTT 3.1.1: a CONNECT with a clean session and the client id "probe", and the CONNACK of who is let in.
CONNECT, ACCEPTED = b"\x10\x11\x00\x04MQTT\x04\x02\x00\x0a\x00\x05probe", b"\x20\x02\x00\x00"
(RENEWS,) = re.findall(
    r"^ExecStart=/opt/waybill/bin/(.+)$", (ROOT / "deploy/systemd/fleet-renew.service").read_text(), re.MULTILINE
)
FILES = re.compile(r"^`([^`]+\.toml)`[^\n]*:\n\n```toml\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Machine:
    """A folder that stands for the machines: its own /etc, /var and /run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "deploy").symlink_to(ROOT / "deploy")
        for place in (*SYSTEM, *(f"/{a}/fleet-broker-{b}" for a in BROKER for b in NAMES)):
            (folder / place.strip("/")).mkdir(parents=True, exist_ok=True)
        for name, text in FILES.findall(PAGE):
            self.path(name).write_text(self.here(text))
        first = self.path("/etc/waybill/gateway-eu-1.toml").read_text()
        second = first.replace("eu-1", "eu-2").replace("9464", "9465")
        self.path("/etc/waybill/gateway-eu-2.toml").write_text(second)

    def path(self, name: str) -> Path:
        return self.folder / name.strip("/")

    def here(self, text: str) -> str:
        # The users of the page are not on this machine, and systemd does not run here: the unit says what it starts.
        text = re.sub(r" -o [\w-]+ -g [\w-]+ ", " ", text)
        text = re.sub(r"^journalctl --unit fleet-renew .+", RENEWS, text)
        for place in SYSTEM:
            text = re.sub(rf"(?<![\w.]){place}", f"{self.folder}{place}", text)
        return text

    def run(self, command: str) -> str:
        """What it prints. It succeeds."""
        ran = self.tried(command)
        assert ran.returncode == 0, (command, ran.stdout, ran.stderr)
        return ran.stdout + ran.stderr

    def tried(self, command: str) -> subprocess.CompletedProcess[str]:
        tokens = f"{self.folder}/var/lib/fleet-tokens"
        issuer = {"WAYBILL_TOKEN_ISSUER": "https://keys.example", "WAYBILL_TOKENS": tokens}
        return run_line(self.here(command), self.folder, **issuer)


def lines() -> Iterator[tuple[str, str, str]]:
    """Each command of the page, with its prompt and what it prints there."""
    # Of every language, so that the end of one block is not taken for the beginning of the next.
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        if not language:
            yield from STEP.findall(block)


def steps() -> Iterator[tuple[str, str]]:
    """Those that need neither root nor systemd nor Pulsar."""
    for prompt, command, printed in lines():
        if not (prompt == "#" and command.startswith(BY_ROOT)) and "access status" not in command:
            yield command, printed


def asking_clusters() -> list[str]:
    """Those that ask Pulsar, and end when no cluster answers."""
    return [command for prompt, command, _ in lines() if prompt == "#" and command.startswith("waybill topology")]


def in_order(printed: str) -> str:
    """A pattern of what is printed: `…` is anything in a line, or any lines where it stands alone."""
    patterns = ("(?s:.+)" if line == "…" else re.escape(line).replace("…", ".+") for line in printed.split("\n"))
    return "\n".join(patterns)


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
        if command.startswith("journalctl"):
            said = f"Starting\n{said}Finished\n"
        assert re.fullmatch(in_order(made.here(printed)), said), (command, said)
    return made


@pytest.fixture(scope="module")
def topology(machine: Machine) -> Topology:
    return load(Topology, machine.path("topology.toml"))


def test_every_role_of_the_topology_has_a_token_that_is_renewed_and_brought_to_somebody(
    machine: Machine, topology: Topology
) -> None:
    brokers = {topology.role_of_brokers(cluster) for cluster in topology.clusters}
    roles = {*topology.roles_by_name(), *brokers}
    commands = [command for _, command, _ in lines()]
    (made,) = (command for command in commands if command.startswith("for role in "))
    assert {*made.removeprefix("for role in ").partition(";")[0].split()} == roles
    (script,) = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    cases = re.findall(r"^([a-z |-]+)\) ", script, re.MULTILINE)
    assert {role.strip() for case in cases for role in case.split("|")} == roles
    hand_out = machine.folder / "hand-out"
    hand_out.write_text(script)
    asked = [subprocess.run(["/bin/sh", hand_out, role], check=False).returncode for role in ("operator", "nobody")]
    assert asked == [0, 1]


@pytest.mark.parametrize("command", asking_clusters())
def test_a_line_that_asks_clusters_fails_for_want_of_them_and_of_nothing_else(machine: Machine, command: str) -> None:
    ran = machine.tried(command)
    said = ran.stdout + ran.stderr
    assert ran.returncode in {1, 3}, said
    assert re.search(
        r"cluster (eu|hq) did not answer at https://pulsar\.\1\.example:8443: .*(resolve|Name|lookup)", said
    ), said


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
            process.wait(10 * PATIENCE)
