"""The agent's Debian package in a root without a network: install, deliver, upgrade, downgrade, remove, purge."""

import json
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from deploy.local.mosquitto import mosquitto_program
from deploy.local.server import mqtt_answers
from deploy.packages.components import components_of
from deploy.packages.debian_package import build_package
from deploy.packages.wheels import MACHINES, build_project, download, write_wheelhouse
from tests.deploy.packages.debian_root import DebianRoot, no_network, release, root_archive
from tests.edge_agent.process import DEVICE, TENANT, VehicleSensors
from tests.edge_agent.region import MqttRegion
from tests.waiting import wait_until
from waybill.record import IntervalSet

pytestmark = [pytest.mark.nightly, pytest.mark.own_servers]
TIME_S = 1_767_603_422
LIMIT_S = 30.0
PACKAGE_MB, INSTALLED_MB = 10, 32
NAME = "waybill-edge-agent"
SETTINGS = "/etc/waybill/agent.toml"
BUFFER = "/var/lib/edge-agent"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path]]:
    """The project's wheel, and those that the agent needs on this machine."""
    release()
    folder = tmp_path_factory.mktemp("wheels")
    architecture = subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True)
    downloads = folder / architecture.stdout.strip()
    downloads.mkdir()
    return build_project(folder), download("edge", downloads.name, downloads)


@pytest.fixture(scope="module")
def packages(wheels: tuple[Path, list[Path]], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two versions of the package."""
    own, others = wheels
    folder = tmp_path_factory.mktemp("packages")
    machine = others[0].parent.name
    return {
        version: build_package(folder, own, others, version=version, architecture=machine, time_s=TIME_S)
        for version in ("0.1.0", "0.2.0")
    }


@pytest.fixture
def root(tmp_path: Path) -> Iterator[DebianRoot]:
    root_archive()  # made with the network
    with no_network():
        assert [name for _, name in socket.if_nameindex()] == ["lo"]
        yield DebianRoot(tmp_path / "root")


@pytest.fixture
def brokers(root: DebianRoot, tmp_path: Path) -> Iterator[dict[str, int]]:
    """The vehicle's broker and the region's: the port of each.

    Not the servers of the local stack: a thread starts those, perhaps one outside of this network.
    """
    ports = {"car": 18831, "region": 18832}
    processes = []
    for name, port in ports.items():
        conf = tmp_path / f"{name}.conf"
        conf.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\n", encoding="utf-8")
        processes.append(subprocess.Popen([mosquitto_program(), "-c", str(conf)], stderr=subprocess.DEVNULL))
    try:
        wait_until(lambda: all(mqtt_answers(port) for port in ports.values()))
        yield ports
    finally:
        for process in processes:
            process.terminate()
            process.wait(30)


def configure(root: DebianRoot, brokers: dict[str, int], extra: str = "") -> None:
    root.path(SETTINGS).write_text(
        f'[device]\nid = "{DEVICE}"\ntenant = "{TENANT}"\n[intake]\nport = {brokers["car"]}\n{extra}\n'
        f'[[uplinks]]\nregion = "eu"\nhost = "127.0.0.1"\nport = {brokers["region"]}\n',
        encoding="utf-8",
    )


@contextmanager
def running(root: DebianRoot, log: Path) -> Iterator[None]:
    """The agent as its unit starts it: the same line, the same user."""
    unit = root.path("/usr/lib/systemd/system/edge-agent.service").read_text(encoding="utf-8")
    (line,) = re.findall(r"^ExecStart=(.+)$", unit, re.MULTILINE)
    (user,) = re.findall(r"^User=(.+)$", unit, re.MULTILINE)
    with log.open("a", encoding="utf-8") as output:
        process = subprocess.Popen(root.command(line, user), stdout=output, stderr=output)
    try:
        wait_until(lambda: "listening" in log.read_text(encoding="utf-8"), said=lambda: log.read_text("utf-8"))
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        log.unlink()


def status(root: DebianRoot) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(root.run(f"edge-agent status --json --config {SETTINGS}"))
    return found


def is_empty(state: dict[str, Any]) -> bool:
    return not state["depth_records"] and not state["tombstones_waiting"]


def exported(root: DebianRoot) -> list[str]:
    return root.run(f"edge-agent export --config {SETTINGS}").splitlines()


def test_a_new_package_delivers_an_acknowledged_message_within_30_s(root, brokers, packages, tmp_path, capsys):
    region = MqttRegion(brokers["region"])
    sensors = VehicleSensors(brokers["car"])
    package = packages["0.1.0"]
    root.path(package.name).write_bytes(package.read_bytes())
    began_s = time.monotonic()
    said = root.run(f"apt-get install --yes /{package.name}")
    assert f"edge-agent setup --out {SETTINGS}" in said
    configure(root, brokers)
    with running(root, tmp_path / "agent.log"):
        sensors.position()
        wait_until(lambda: status(root)["acknowledged"] == 1, LIMIT_S, said=lambda: status(root))
    took_s = time.monotonic() - began_s
    assert [name[::2] for name in region.records] == [(DEVICE, 1)]
    sensors.close()
    region.close()
    installed_mb = sum(path.stat().st_size for path in root.path(f"/opt/{NAME}").rglob("*.*") if path.is_file()) / 1e6
    kib = int(root.run(f"dpkg-query -W -f '${{Installed-Size}}' {NAME}"))
    with capsys.disabled():
        size_mb = package.stat().st_size / 1e6
        sys.stdout.write(
            f"\ninstalled and delivered in {took_s:.1f} s; package {size_mb:.1f} MB,"
            f" installed {kib / 1000:.1f} MB, with bytecode {installed_mb:.1f} MB\n"
        )
    assert took_s < LIMIT_S
    assert package.stat().st_size < PACKAGE_MB * 1e6
    assert kib < INSTALLED_MB * 1000


def test_the_unit_is_enabled_valid_and_runs_as_a_user_that_owns_the_buffer(root, packages):
    root.dpkg("--install", packages["0.1.0"])
    assert root.path("/etc/systemd/system/multi-user.target.wants/edge-agent.service").is_symlink()
    assert root.run("systemd-analyze verify edge-agent.service") == ""
    assert root.run(f"stat -c %U:%G:%a {BUFFER}") == "edge-agent:edge-agent:700\n"
    assert root.run("edge-agent --version") == "edge-agent 0.1.0\n"
    assert root.run(f"dpkg --verify {NAME}") == ""


def test_upgrade_downgrade_remove_and_purge_keep_every_record_of_a_full_buffer(root, brokers, packages, tmp_path):
    log = tmp_path / "agent.log"
    root.dpkg("--install", packages["0.1.0"])
    configure(root, brokers, "[buffer]\nmax_bytes = 65536\ncommit_delay_ms = 1\ncommit_records = 20")
    settings = root.path(SETTINGS).read_text(encoding="utf-8")
    sensors = VehicleSensors(brokers["car"])
    with running(root, log):
        while not status(root)["tombstones_waiting"]:  # full: the oldest records are declared lost
            for _ in range(500):
                sensors.position()
            wait_until(lambda: len(sensors.taken) == sensors.sent)
    full = exported(root)
    head = int(status(root)["head"])

    said = root.dpkg("--install", packages["0.2.0"])
    assert "Unpacking waybill-edge-agent (0.2.0) over (0.1.0)" in said
    assert exported(root) == full
    root.dpkg("--install --force-downgrade", packages["0.1.0"])
    assert exported(root) == full
    assert root.path(SETTINGS).read_text(encoding="utf-8") == settings
    said = root.dpkg("--remove", NAME)
    assert f"the buffer, the device's keys and the settings stay in {BUFFER} and /etc/waybill" in said
    assert not root.path(f"/opt/{NAME}").exists()
    root.dpkg("--install", packages["0.2.0"])
    assert exported(root) == full
    said = root.dpkg("--purge", NAME)
    assert f"the buffer stays in {BUFFER}" in said
    assert not root.path("/etc/waybill").exists()
    assert not root.path("/etc/systemd/system/multi-user.target.wants/edge-agent.service").exists()
    root.dpkg("--install", packages["0.2.0"])
    root.path("/etc/waybill").mkdir(exist_ok=True)
    root.path(SETTINGS).write_text(settings, encoding="utf-8")
    assert exported(root) == full

    region = MqttRegion(brokers["region"])
    with running(root, log):
        wait_until(lambda: is_empty(status(root)), 60, said=lambda: status(root))
    sensors.close()
    region.close()
    ((device, epoch),) = region.heads
    assert region.accounted(device, epoch).covers(IntervalSet([(1, head)]))
    waiting = {line["seq"] for line in map(json.loads, full) if "kind" in line}
    assert waiting <= {seq for _, _, seq in region.records}


SYSTEMCTL = """#!/bin/sh
echo "systemctl $*" >> /calls
case "$*" in *is-enabled*) echo enabled ;; esac
"""


def test_under_systemd_an_upgrade_stops_the_old_agent_and_starts_the_new_one(root, brokers, packages):
    """A stand-in for systemctl writes down what the scripts call; systemd itself does not run in a root."""
    program = root.path("/usr/local/bin/systemctl")
    program.write_text(SYSTEMCTL, encoding="utf-8")
    program.chmod(0o755)
    root.path("/run/systemd/system").mkdir(parents=True)

    def calls(action: str, package: Path | str) -> list[str]:
        root.path("/calls").write_text("", encoding="utf-8")
        root.dpkg(action, package)
        lines = root.path("/calls").read_text(encoding="utf-8").splitlines()
        return [word for line in lines for word in shlex.split(line) if word in {"start", "stop", "daemon-reload"}]

    assert calls("--install", packages["0.1.0"]) == ["daemon-reload"]
    configure(root, brokers)
    assert calls("--install", packages["0.2.0"]) == ["stop", "daemon-reload", "start"]
    assert calls("--remove", NAME) == ["stop", "daemon-reload"]
    assert calls("--install", packages["0.2.0"]) == ["daemon-reload", "start"]
    assert calls("--purge", NAME) == ["stop", "daemon-reload", "daemon-reload"]


def test_a_package_of_real_wheels_is_built_twice_with_equal_bytes(wheels, packages, tmp_path):
    own, others = wheels
    machine = others[0].parent.name
    again = build_package(tmp_path, own, others, version="0.1.0", architecture=machine, time_s=TIME_S)
    assert again.read_bytes() == packages["0.1.0"].read_bytes()
    assert build_project(tmp_path).read_bytes() == own.read_bytes()
    (archive,) = tmp_path.glob("*.tar.gz")
    assert archive.read_bytes() == (own.parent / archive.name).read_bytes()
    assert machine in MACHINES


def test_the_wheelhouse_installs_the_agent_without_a_network(wheels, tmp_path):
    own, others = wheels
    archive = tmp_path / "house.tar"
    components_of([own, *others])
    write_wheelhouse(archive, "edge", others, own, documents={}, time_s=TIME_S)
    subprocess.run(["tar", "-xf", archive, "-C", tmp_path], check=True, timeout=60)
    with no_network():
        subprocess.run([sys.executable, "-m", "venv", tmp_path / "env"], check=True, timeout=300)
        pip = [tmp_path / "env/bin/pip", "install", "-q", "--no-index", "-f", ".", "--require-hashes"]
        subprocess.run([*pip, "-r", "requirements.txt"], cwd=tmp_path / "house", check=True, timeout=300)
        command = [tmp_path / "env/bin/edge-agent", "--version"]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.startswith("edge-agent ")
