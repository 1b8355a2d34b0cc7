"""A supervised server starts, is named when it fails, and ends with its parent whatever happens."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import psutil
import pytest
from typer.testing import CliRunner

from deploy.local import (
    DaemonProcess,
    LocalStack,
    Server,
    ServerFailed,
    ServerState,
    free_port,
    http_health,
)
from tests.waiting import PATIENCE, wait_until
from waybill.commands import SUBCOMMANDS, command_line

SLEEP = "import time; time.sleep(60)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def lives() -> bool:
    return True


def daemon(
    folder: Path, code: str, *, settle_s: float = 0.1, healthy_when: Callable[[], bool] | None = None
) -> DaemonProcess:
    command = [sys.executable, "-c", code]
    return DaemonProcess("sample", command, folder, settle_s=settle_s, healthy_when=healthy_when)


def test_a_server_is_stopped_starting_healthy_and_stopped_again(tmp_path: Path) -> None:
    server = daemon(tmp_path, SLEEP, healthy_when=lives)
    assert server.state is ServerState.STOPPED
    assert server.pid is None
    server.start()
    assert server.state is ServerState.STARTING  # type: ignore[comparison-overlap]
    server.wait(10 * PATIENCE)  # type: ignore[unreachable]
    assert server.state is ServerState.HEALTHY
    pid = server.pid
    assert pid is not None
    assert server.memory_bytes > 0
    server.stop()
    assert server.state is ServerState.STOPPED
    assert server.memory_bytes == 0
    assert not is_alive(pid)


def test_a_server_that_ends_is_named_with_its_exit_status_and_last_log_lines(tmp_path: Path) -> None:
    server = daemon(tmp_path, "for n in range(40): print('line', n)\nraise SystemExit('no such port')", settle_s=5)
    server.start()
    with pytest.raises(ServerFailed) as caught:
        server.wait(10 * PATIENCE)
    assert caught.value.server == "sample"
    assert caught.value.reason == "ended with exit status 1"
    assert caught.value.last_lines[-1] == "no such port"
    assert len(caught.value.last_lines) == 15
    assert "no such port" in str(caught.value)
    assert str(server.log) in str(caught.value)


def test_a_server_that_never_becomes_healthy_is_named_when_the_time_is_over(tmp_path: Path) -> None:
    server = daemon(tmp_path, SLEEP, healthy_when=lambda: False)
    server.start()
    with pytest.raises(ServerFailed, match="server sample was not healthy after 0 s"):
        server.wait(0.3)
    server.stop()


IN_ORDER = (
    "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(print('in order')));"
    "print('up', flush=True); time.sleep(60)"
)


class Defective(DaemonProcess):
    """A server that answers, and is of no use after its first starts."""

    def __init__(self, folder: Path, bad_starts: int) -> None:
        command = [sys.executable, "-c", IN_ORDER]
        super().__init__("sample", command, folder, healthy_when=lambda: self.last_lines() == ["up"])
        self.bad_starts = bad_starts

    def defect(self) -> str | None:
        return "no messages are read" if self.restarts < self.bad_starts else None


def test_a_server_that_answers_and_is_known_to_be_of_no_use_is_stopped_in_order_and_started_again(
    tmp_path: Path,
) -> None:
    server = Defective(tmp_path, bad_starts=2)
    server.start()
    first = server.pid
    server.wait(10 * PATIENCE)
    assert (server.state, server.restarts) == (ServerState.HEALTHY, 2)
    assert first is not None
    assert not is_alive(first)
    assert server.log.read_text().split("\n")[:-1] == ["up", "in order", "up", "in order", "up"]
    server.stop()


def test_one_that_does_not_listen_to_sigterm_is_killed(tmp_path: Path) -> None:
    server = daemon(tmp_path, STUBBORN, healthy_when=lambda: "deaf" in server.log.read_text())
    server.start()
    server.wait(10 * PATIENCE)
    pid = server.pid
    assert pid is not None
    server.stop(0.2)
    assert not is_alive(pid)


def test_the_children_of_a_server_end_with_it(tmp_path: Path) -> None:
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEP!r}]).wait()"
    server = daemon(tmp_path, code)
    server.start()
    pid = server.pid
    assert pid is not None
    wait_until(lambda: len(psutil.Process(pid).children()) == 1)
    [child] = psutil.Process(pid).children()
    server.stop()
    wait_until(lambda: not is_alive(child.pid))


def test_the_children_of_a_server_that_failed_end_when_that_is_seen(tmp_path: Path) -> None:
    code = (
        f"import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', {SLEEP!r}])\n"
        "print(child.pid, flush=True); raise SystemExit(3)"
    )
    server = daemon(tmp_path, code, settle_s=60)
    server.start()
    wait_until(lambda: server.state is ServerState.FAILED)
    child = int(server.log.read_text())
    wait_until(lambda: not is_alive(child))
    assert server.exit_status == 3


def test_a_server_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    # The kernel ties a child to the thread that forked it, so a pool's thread must not be the one that forks.
    server = daemon(tmp_path, SLEEP)
    starter = Thread(target=server.start)
    starter.start()
    starter.join()
    with pytest.raises(AssertionError):
        wait_until(lambda: server.state is ServerState.FAILED, 0.3)
    server.stop()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_server_ends_when_its_parent_is_ended(tmp_path: Path, number: signal.Signals) -> None:
    parent_code = (
        # A test run in the background of a shell ignores SIGINT, and its children inherit that.
        "import signal, time\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from pathlib import Path\nfrom deploy.local import DaemonProcess\nimport sys\n"
        f"server = DaemonProcess('sample', [sys.executable, '-c', {SLEEP!r}], Path({str(tmp_path)!r}))\n"
        "server.start()\nprint(server.pid, flush=True)\ntime.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", parent_code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert parent.stdout is not None
    with parent.stdout:
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        os.kill(parent.pid, number)
        parent.wait(10 * PATIENCE)
    wait_until(lambda: not is_alive(pid))


SERVE = (
    "import http.server, sys\n"
    "http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), http.server.SimpleHTTPRequestHandler).serve_forever()"
)


class OneServer(LocalStack):
    """A stack of one web server: no cluster has to start for what it says of a server."""

    ask_every_s = 0.0

    def _compose(self) -> None:
        port = free_port()
        command = [sys.executable, "-c", SERVE, str(port)]
        web = DaemonProcess("web", command, self.folder / "web", healthy_when=http_health(f"http://127.0.0.1:{port}"))
        self._added = {web.name: web}

    def _replicate(self) -> None:
        """There is no cluster."""


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def stack(tmp_path: Path, said: list[str]) -> Iterator[LocalStack]:
    def note(server: Server) -> None:
        said.append(f"{server.name}: {server.state}")

    with OneServer(tmp_path / "stack", on_change=note) as running:
        yield running


@contextmanager
def frozen(stack: LocalStack) -> Iterator[None]:
    pid = stack.servers[0].pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def status(stack: LocalStack, *words: str) -> tuple[int, str]:
    arguments = ["status", "--folder", str(stack.folder), *words]
    done = CliRunner().invoke(command_line(SUBCOMMANDS, arguments, "help"), arguments)
    return done.exit_code, done.stdout


def test_a_stack_says_when_a_server_is_silent_when_it_is_back_and_when_it_has_ended(
    stack: LocalStack, said: list[str]
) -> None:
    stack.check()
    code, shown = status(stack)
    assert code == 0
    assert "stack: ready; 1 of 1 servers healthy when asked at 20" in shown
    with frozen(stack):
        stack.check()
        code, shown = status(stack)
        assert code == 1
        assert "not answering" in shown
        assert "stack: not ready; 0 of 1 servers healthy when asked at 20" in shown
    stack.check()
    code, shown = status(stack, "--json")
    assert code == 0
    assert [server["state"] for server in json.loads(shown)["servers"]] == ["healthy"]
    assert said == ["web: healthy", "web: not answering", "web: healthy"]
    pid = stack.servers[0].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(ServerFailed, match="SIGKILL"):
        stack.check()
    code, shown = status(stack)
    assert code == 1
    assert "failed" in shown
