"""What a screen says of a server is what the server answered just now, and unknown where nobody can ask it."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deploy.local import (
    DaemonProcess,
    LocalStack,
    Server,
    ServerFailed,
    ServerState,
    StackSettings,
    free_port,
    http_health,
)
from tests.waiting import wait_until
from waybill.commands import SUBCOMMANDS, command_line

SERVE = (
    "import http.server, sys\n"
    "http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), http.server.SimpleHTTPRequestHandler).serve_forever()"
)
SLEEP = "import time; time.sleep(600)"


class OneServer(LocalStack):
    """A stack of one web server: no cluster has to start for what it says of a server."""

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

    with OneServer(tmp_path / "stack", settings=StackSettings(ask_every_s=0), on_change=note) as running:
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


def test_status_asks_the_servers_now_whatever_was_written_when_they_started(stack: LocalStack) -> None:
    code, shown = status(stack)
    assert code == 0
    assert "stack: ready; 1 of 1 servers healthy when asked at 20" in shown
    with frozen(stack):
        code, shown = status(stack)
        assert code == 1
        assert "not answering" in shown
        assert "stack: not ready; 0 of 1 servers healthy when asked at 20" in shown
    before = time.time()
    code, shown = status(stack, "--json")
    assert code == 0
    assert [server["state"] for server in json.loads(shown)["servers"]] == ["healthy"]
    assert json.loads(shown)["asked_s"] >= before


def test_the_check_of_the_stack_asks_too_and_says_when_a_server_is_silent_and_when_it_is_back(
    stack: LocalStack, said: list[str]
) -> None:
    with frozen(stack):
        stack.check()
        assert stack.servers[0].state is ServerState.SILENT
        assert '"state": "not answering"' in (stack.folder / "stack.json").read_text()
    stack.check()
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


def test_of_a_server_that_nobody_can_ask_it_is_unknown_whether_it_is_healthy(stack: LocalStack) -> None:
    stack.add(DaemonProcess("quiet", [sys.executable, "-c", SLEEP], stack.folder / "quiet", settle_s=0))
    stack.check()
    code, shown = status(stack)
    assert code == 1
    assert next(line.split()[1] for line in shown.splitlines() if line.startswith("quiet")) == "unknown"
    assert "1 of 2 servers healthy" in shown


def test_a_stack_that_goes_on_starts_a_server_again_three_times_and_says_how_it_ended(
    stack: LocalStack, said: list[str]
) -> None:
    web = stack.servers[0]

    def is_healthy() -> bool:
        stack.check(goes_on=True)
        return web.healthy

    def killed() -> None:
        assert web.pid is not None
        os.kill(web.pid, signal.SIGKILL)
        wait_until(lambda: web.pid is None, 10)
        stack.check(goes_on=True)

    for number in (1, 2, 3):
        killed()
        wait_until(is_healthy, 20)
        code, shown = status(stack)
        assert code == 0
        assert f"web was ended by SIGKILL and was started again, {number} of 3 times" in " ".join(shown.split())
    killed()
    stack.check(goes_on=True)
    assert said[-1] == "web: failed"
    code, shown = status(stack)
    assert code == 1
    assert "is not started again" in " ".join(shown.split())
