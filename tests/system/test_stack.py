"""The local stack on real servers: started, found, interrupted, restarted, and clear about what failed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloud_jobs.config import CloudSettings
from deploy.local import StackNotRunning, StackState
from tests.waiting import PATIENCE, wait_until
from waybill.settings import load

pytestmark = pytest.mark.system
own_servers = pytest.mark.own_servers


def processes_of(folder: Path) -> list[str]:
    """Command lines of all living processes that name the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in words:
            found.append(words)
    return found


class Up:
    """`waybill up` as a person runs it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder.with_suffix(".log")
        with self.log.open("wb") as log:
            command = [sys.executable, "-m", "waybill", "up", "--folder", str(folder)]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def phase(self) -> str:
        try:
            return StackState.load(self.folder).phase
        except StackNotRunning:
            return ""

    def has_servers(self) -> bool:
        try:
            return any(server.pid for server in StackState.load(self.folder).servers)
        except StackNotRunning:
            return False


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    one = Up(tmp_path / "a stack")  # a space in its name, as people have them
    yield one
    if one.process.poll() is None:
        one.process.kill()
        one.process.wait(10 * PATIENCE)


@own_servers
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly), signal.SIGKILL]
)
def test_an_interrupted_start_leaves_no_process_behind(up: Up, number: signal.Signals) -> None:
    wait_until(up.has_servers, 60, said=up.log.read_text)
    assert any("PulsarStandaloneStarter" in words for words in processes_of(up.folder))
    up.process.send_signal(number)
    status = up.process.wait(60 * PATIENCE)
    assert status == (-signal.SIGKILL if number is signal.SIGKILL else 0), up.log.read_text()
    wait_until(lambda: not processes_of(up.folder), said=lambda: processes_of(up.folder))


@pytest.mark.nightly
@own_servers
def test_a_stack_runs_in_the_background_until_it_is_stopped(tmp_path: Path) -> None:
    def waybill(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "waybill", *words, "--folder", str(tmp_path / "stack")]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=700)

    started = waybill("up", "--detach", "--lake", "s3")
    assert started.returncode == 0, started.stderr
    try:
        status = waybill("status", "--json")
        assert status.returncode == 0, status.stderr
        shown = json.loads(status.stdout)
        assert {server["name"] for server in shown["servers"]} >= {
            "pulsar-eu",
            "pulsar-us",
            "pulsar-hq",
            "mosquitto-eu",
            "s3",
        }
        where = next(server["addresses"] for server in shown["servers"] if server["name"] == "s3")
        assert where["bucket"] == "s3://lake"
        assert where["endpoint"].startswith("http://127.0.0.1:")
        jobs = load(CloudSettings, tmp_path / "stack/cloud.toml")
        assert (jobs.lake, jobs.object_store.endpoint) == ("s3://lake/lake", where["endpoint"])
        hq = next(server["pid"] for server in shown["servers"] if server["name"] == "pulsar-hq")
        os.kill(hq, signal.SIGSTOP)
        try:
            wait_until(lambda: waybill("status").returncode == 1, 30)
            frozen = waybill("status")
        finally:
            os.kill(hq, signal.SIGCONT)
        assert frozen.returncode == 1
        assert "not answering" in next(line for line in frozen.stdout.splitlines() if line.startswith("pulsar-hq"))
        assert "stack: not ready; " in frozen.stdout
        second = waybill("up")
        assert second.returncode == 1
        assert "already runs" in second.stderr
    finally:
        stopped = waybill("down")
    assert stopped.returncode == 0, stopped.stderr
    wait_until(lambda: not processes_of(tmp_path / "stack"), 10)
    assert waybill("status").returncode == 3
