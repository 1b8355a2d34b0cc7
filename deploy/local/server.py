"""One supervised server: start, wait until healthy, stop; and a clear message about the one that failed."""

import contextlib
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from functools import cache
from pathlib import Path
from threading import RLock

import httpx

from deploy.local.errors import ServerFailed
from deploy.local.folder import memory_bytes
from waybill.daemon.tls import TlsSettings, tls_context

# Health checks of servers.

_HTTP_S, _MQTT_S = 5.0, 2.0
_HOST = "127.0.0.1"
# An MQTT 3.1.1 CONNECT with a clean session and the client id "probe"; the answer must be CONNACK with code 0.
_CONNECT = b"\x10\x11\x00\x04MQTT\x04\x02\x00\x0a\x00\x05probe"
_CONNACK = b"\x20\x02\x00\x00"


def http_health(
    *urls: str, token_file: Path | None = None, tls_ca: Path | None = None, expect: Mapping[str, str] | None = None
) -> Callable[[], bool]:
    """Whether a GET of each address succeeds within five seconds. `expect`: fields that the JSON answer must have."""

    def is_right(answer: httpx.Response) -> bool:
        return answer.is_success and (expect is None or expect.items() <= answer.json().items())

    def is_healthy() -> bool:
        try:
            headers = {"Authorization": f"Bearer {token_file.read_text().strip()}"} if token_file else None
            return all(is_right(_client(tls_ca).get(url, headers=headers)) for url in urls)
        except (httpx.HTTPError, OSError, ValueError, AttributeError, TypeError):
            return False

    return is_healthy


def port_is_open(port: int, host: str = _HOST) -> bool:
    try:
        socket.create_connection((host, port), timeout=_MQTT_S).close()
    except OSError:
        return False
    return True


def mqtt_answers(port: int, tls: TlsSettings | None = None) -> bool:
    """Whether an MQTT broker answers a CONNECT, in plain text or with these TLS files."""
    try:
        with socket.create_connection((_HOST, port), timeout=_MQTT_S) as plain:
            connection = plain if tls is None else tls_context(tls).wrap_socket(plain, server_hostname=_HOST)
            with connection:
                connection.sendall(_CONNECT)
                return connection.recv(len(_CONNACK)) == _CONNACK
    except (OSError, ValueError):
        return False


@cache
def _client(tls_ca: Path | None = None) -> httpx.Client:
    # One for all questions: making a client takes 27 ms of CPU, and a server is asked five times a second while it
    # starts. No connection is kept: the server at its other end may have been killed since.
    verify = True if tls_ca is None else ssl.create_default_context(cafile=str(tls_ca))
    return httpx.Client(
        timeout=_HTTP_S, limits=httpx.Limits(max_keepalive_connections=0), verify=verify, trust_env=False
    )


# Child processes that end with this process.

# The kernel ties a child to the *thread* that forked it. All children are forked by this one thread, which lives as
# long as the process, so callers may use short-lived threads of their own.
_forker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="forker")


def spawn(command: Sequence[str], *, log: Path, folder: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start `command` in a session of its own, its output appended to `log`; it dies with this process.

    `env` is added to this process's environment.
    """

    def fork() -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            return subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**os.environ, **env},
                start_new_session=True,
            )

    return _forker.submit(fork).result(timeout=30)


_POLL_S = 0.2
_STOP_POLL_S = 0.02
# Seen without being reaped (WNOWAIT): until then the kernel gives its id, and so its group's, to no other process.
_ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT
_LAST_LINES = 15
_TAIL_BYTES = 64 * 1024
_MAX_STARTS = 4


class ServerState(StrEnum):
    """Where a server is in its life. HEALTHY and SILENT are what it answered when it was last asked."""

    STOPPED = "stopped"
    STARTING = "starting"
    HEALTHY = "healthy"
    SILENT = "not answering"
    FAILED = "failed"


class Server(ABC):
    """A process in a folder of its own that ends with this process.

    `start` and `stop` may alternate any number of times: the folder, and so the data, stays.
    """

    start_timeout_s = 90.0
    stop_timeout_s = 20.0

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder.absolute()
        self.log = self.folder / f"{name}.log"
        self.healthy = False
        self.wanted = False
        """Whether it was started and not stopped since."""
        self.restarts = 0
        self._has_answered = False
        self._process: subprocess.Popen[bytes] | None = None
        self._reaping = RLock()
        self._log_start = 0

    @abstractmethod
    def command(self) -> Sequence[str]:
        """The program and its arguments."""

    @abstractmethod
    def probe(self) -> bool:
        """Whether the server does its work now; bounded in time, never raises."""

    def defect(self) -> str | None:
        """What is wrong with a process that answers, if only another start repairs it."""
        return None

    def prepare(self) -> None:  # noqa: B027 - most servers need nothing written
        """Write the files that the server reads when it starts."""

    def environment(self) -> Mapping[str, str]:
        """Variables added to this process's environment."""
        return {}

    def addresses(self) -> dict[str, str]:
        return {}

    @property
    def pid(self) -> int | None:
        """The process id while the process lives."""
        return self._process.pid if self._process and not self._has_ended() else None

    @property
    def exit_status(self) -> int | None:
        """How the process ended; None while it lives, before its start, and after `stop` or `kill`."""
        return self._process.returncode if self._process and self._has_ended() else None

    @property
    def state(self) -> ServerState:
        if self._process is None or not self.wanted:
            return ServerState.STOPPED
        if self._has_ended():
            return ServerState.FAILED
        if self.healthy:
            return ServerState.HEALTHY
        return ServerState.SILENT if self._has_answered else ServerState.STARTING

    @property
    def memory_bytes(self) -> int:
        """Resident memory of the process and its children; 0 when it does not run."""
        return memory_bytes(self.pid) if self.pid else 0

    def start(self) -> None:
        """Start the process and return at once; `wait` returns when it is healthy."""
        if self.pid is None:
            self.restarts = 0
            self._start()

    def _start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.prepare()
        # The log continues over restarts: what is shown of a failure begins at this start.
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        self.healthy, self._has_answered, self.wanted = False, False, True
        self._process = spawn(self.command(), log=self.log, folder=self.folder, env=self.environment())

    def check_alive(self) -> None:
        """Raise ServerFailed when the process ended by itself."""
        if self._process is None or not self.wanted:
            raise ServerFailed(self.name, "was not started", self.log, [])
        if self._has_ended():
            code = self._process.returncode
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"
            raise ServerFailed(self.name, how, self.log, self.last_lines())

    def check(self) -> bool:
        """Probe once; True when healthy. Raises ServerFailed when the process ended.

        A server that answers for the first time and has a `defect` is started again, at most three times.
        """
        self.check_alive()
        self.healthy = self.probe()
        if self.healthy and not self._has_answered and (defect := self.defect()) is not None:
            if self.restarts + 1 >= _MAX_STARTS:
                reason = f"{defect} after each of {_MAX_STARTS} starts"
                raise ServerFailed(self.name, reason, self.log, self.last_lines())
            # In order: what a kill leaves behind may be what the defect came from.
            self.stop()
            self._start()
            self.restarts += 1
        self.note(self.healthy)
        return self.healthy

    def note(self, healthy: bool) -> bool:
        """Keep a result of `probe`; returns whether it changes anything."""
        is_new = healthy != self.healthy
        self.healthy = healthy
        self._has_answered = self._has_answered or healthy
        return is_new

    def wait(self, timeout_s: float | None = None) -> None:
        """Return when healthy; raises ServerFailed when it ends or the time is over."""
        wait_all([self], timeout_s)

    def stop(self, timeout_s: float | None = None) -> None:
        """SIGTERM to its process group, SIGKILL when the time is over; returns when it is gone."""
        if self._process is not None:
            self._signal(signal.SIGTERM)
            deadline = time.monotonic() + (self.stop_timeout_s if timeout_s is None else timeout_s)
            while not self._has_ended() and time.monotonic() < deadline:
                time.sleep(_STOP_POLL_S)
        self.kill()

    def kill(self) -> None:
        """SIGKILL to its process group, as a power cut would; returns when it is gone."""
        self.wanted = self.healthy = False
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self.stopped(self._process.wait(10))
            self._process = None

    def stopped(self, exit_status: int) -> None:  # noqa: B027 - most servers leave nothing to pick up
        """Called once when the process is gone."""

    def last_lines(self, count: int = _LAST_LINES) -> list[str]:
        """The last log lines of the current start."""
        if not self.log.exists():
            return []
        with self.log.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, size - _TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
        return [line[:400] for line in lines[-count:]]

    def _has_ended(self) -> bool:
        """Whether the process is gone; its children are killed when this is first seen."""
        process = self._process
        if process is None or process.returncode is not None:
            return True
        # One thread at a time: a second one would signal the group when its id may be another process's.
        with self._reaping:
            if process.returncode is None and os.waitid(os.P_PID, process.pid, _ENDED) is not None:
                self._signal(signal.SIGKILL)
                process.wait(10)
        return process.returncode is not None

    def _signal(self, number: signal.Signals) -> None:
        # While it was not waited for, its id cannot be another process's.
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)


def wait_all(
    servers: Sequence[Server], timeout_s: float | None = None, on_change: Callable[[Server], None] | None = None
) -> None:
    """Return when all are healthy; raises ServerFailed for the first that ends or is late."""
    waiting, began = list(servers), time.monotonic()
    while waiting:
        for server in list(waiting):
            if server.check():
                waiting.remove(server)
                if on_change:
                    on_change(server)
                continue
            limit = server.start_timeout_s if timeout_s is None else timeout_s
            if time.monotonic() - began > limit:
                raise ServerFailed(server.name, f"was not healthy after {limit:.0f} s", server.log, server.last_lines())
        if waiting:
            time.sleep(_POLL_S)


class DaemonProcess(Server):
    """Any command under supervision.

    `healthy_when` is asked until it says yes (see `http_health`); without it the daemon counts as healthy once it has
    lived for `settle_s` seconds.
    """

    start_timeout_s = 60.0

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        folder: Path,
        *,
        env: Mapping[str, str] | None = None,
        healthy_when: Callable[[], bool] | None = None,
        addresses: Mapping[str, str] | None = None,
        settle_s: float = 0.5,
    ) -> None:
        super().__init__(name, folder)
        self._command = list(command)
        # Output is not buffered, so that the log's last lines are the last ones.
        self._env = {"PYTHONUNBUFFERED": "1", **(env or {})}
        self._healthy_when = healthy_when or self._has_settled
        self._addresses = dict(addresses or {})
        self._settle_s = settle_s
        self._started_at = 0.0

    @classmethod
    def python(
        cls,
        name: str,
        module: str,
        arguments: Sequence[str],
        folder: Path,
        *,
        env: Mapping[str, str] | None = None,
        healthy_when: Callable[[], bool] | None = None,
        addresses: Mapping[str, str] | None = None,
    ) -> "DaemonProcess":
        """`python -m MODULE ARGUMENTS`, run by this interpreter."""
        command = [sys.executable, "-m", module, *arguments]
        return cls(name, command, folder, env=env, healthy_when=healthy_when, addresses=addresses)

    def command(self) -> Sequence[str]:
        return self._command

    def environment(self) -> Mapping[str, str]:
        return self._env

    def addresses(self) -> dict[str, str]:
        return self._addresses

    def start(self) -> None:
        self._started_at = time.monotonic()
        super().start()

    def probe(self) -> bool:
        return self._healthy_when()

    def _has_settled(self) -> bool:
        return time.monotonic() - self._started_at >= self._settle_s
