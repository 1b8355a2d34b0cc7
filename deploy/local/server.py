"""One supervised server: start, wait until healthy, stop; and a clear word about the one that failed."""

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
from threading import RLock, Thread
from typing import Annotated, Literal, Self

import httpx
from pydantic import Field

from deploy.local import launcher
from deploy.local.errors import ServerFailed
from deploy.local.folder import ProcessIdentity, cpu_seconds, proportional_bytes
from waybill.daemon.tls import TlsSettings, tls_context
from waybill.settings import Settings

# Health checks of servers, as data.

ASK_S = 6.0
"""How long servers that are asked side by side may take in all; a little more than one question may."""
_HTTP_S, _MQTT_S = 5.0, 2.0
_HOST = "127.0.0.1"
# An MQTT 3.1.1 CONNECT with a clean session and the client id "probe"; the answer must be CONNACK with code 0.
_CONNECT = b"\x10\x11\x00\x04MQTT\x04\x02\x00\x0a\x00\x05probe"
_CONNACK = b"\x20\x02\x00\x00"


class HttpHealth(Settings):
    """Whether a GET of each address succeeds, each within five seconds; with a token and an authority where given.

    `field`, `value`: what the answer, a JSON object, has to say.
    """

    kind: Literal["http"] = "http"
    urls: tuple[str, ...]
    token_file: Path | None = None
    tls_ca: Path | None = None
    field: str = ""
    value: str = ""

    def __call__(self) -> bool:
        """Ask now."""
        try:
            token = self.token_file and self.token_file.read_text().strip()
            headers = {"Authorization": f"Bearer {token}"} if token else None
            client = _client(self.tls_ca)
            return all(self._is_right(client.get(url, headers=headers)) for url in self.urls)
        except (httpx.HTTPError, OSError, ValueError, AttributeError):
            return False

    def _is_right(self, answer: httpx.Response) -> bool:
        return answer.is_success and (not self.field or answer.json().get(self.field) == self.value)


class MqttHealth(Settings):
    """Whether an MQTT broker answers a CONNECT; one that is not plain is asked with `tls`.

    Without these files all that can be asked is whether it accepts a connection.
    """

    kind: Literal["mqtt"] = "mqtt"
    port: int
    is_plain: bool = True
    tls: TlsSettings | None = None

    def __call__(self) -> bool:
        """Ask now."""
        try:
            with socket.create_connection((_HOST, self.port), timeout=_MQTT_S) as connection:
                if self.is_plain:
                    return _answers(connection)
                # Who has no certificate is not answered.
                if self.tls is None:
                    return True
                with tls_context(self.tls).wrap_socket(connection, server_hostname=_HOST) as secure:
                    return _answers(secure)
        except (OSError, ValueError):
            return False


def _answers(connection: socket.socket) -> bool:
    connection.sendall(_CONNECT)
    return connection.recv(len(_CONNACK)) == _CONNACK


Health = Annotated[HttpHealth | MqttHealth, Field(discriminator="kind")]


def http_health(url: str) -> HttpHealth:
    """The question whether a GET of this URL succeeds."""
    return HttpHealth(urls=(url,))


def ask_all(questions: Mapping[str, Callable[[], bool]], timeout_s: float = ASK_S) -> dict[str, bool]:
    """The answer to each question, asked side by side; False for one that did not come in time."""
    answers: dict[str, bool] = {}

    def ask(name: str, question: Callable[[], bool]) -> None:
        answers[name] = question()

    # Daemons: a command that has said what it knows does not wait for one that is late.
    threads = [Thread(target=ask, args=each, name=f"ask-{each[0]}", daemon=True) for each in questions.items()]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout_s
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return {name: answers.get(name, False) for name in questions}


@cache
def _client(tls_ca: Path | None = None) -> httpx.Client:
    # One for all questions: making a client takes 27 ms of CPU, and a server is asked five times a second while it
    # starts. No connection is kept: the server at its other end may have been killed since.
    verify = True if tls_ca is None else ssl.create_default_context(cafile=str(tls_ca))
    return httpx.Client(timeout=_HTTP_S, limits=httpx.Limits(max_keepalive_connections=0), verify=verify)


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
                # Without site and the user's environment the launcher starts quickly: until its prctl the child is not
                # tied to us.
                [sys.executable, "-I", "-S", launcher.__file__, str(os.getpid()), *command],
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
# Seen without being reaped (WNOWAIT): until then the kernel gives its id, and so its group's, to nobody else.
_ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT
_LAST_LINES = 15
_TAIL_BYTES = 64 * 1024
_MAX_STARTS = 4
_MAX_REVIVALS = 3


class ServerState(StrEnum):
    """Where a server is in its life.

    HEALTHY and SILENT are what it answered when it was last asked; UNKNOWN: its process lives, and nobody can ask it.
    """

    STOPPED = "stopped"
    STARTING = "starting"
    HEALTHY = "healthy"
    SILENT = "not answering"
    UNKNOWN = "unknown"
    FAILED = "failed"


class Server(ABC):
    """A process of its own, in a folder of its own, that ends with us.

    A subclass says what to run (`command`), prepares files (`prepare`) and how to ask whether it is healthy (`health`).
    `start` and `stop` may alternate any number of times: the folder, and so the data, stays.
    """

    kind = "server"
    start_timeout_s = 90.0
    stop_timeout_s = 20.0

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder.absolute()
        self.log = self.folder / f"{name}.log"
        self.healthy = False
        self._answered = False
        self._process: subprocess.Popen[bytes] | None = None
        self._reaping = RLock()
        self._log_start = 0
        self._wanted = False
        self.restarts = self._revivals = 0
        self.ended = ""

    @abstractmethod
    def command(self) -> Sequence[str]:
        """The program and its arguments."""

    @abstractmethod
    def health(self) -> Health | None:
        """The question whether the server does its work now; None where other processes have none to ask."""

    def probe(self) -> bool:
        """Whether the server does its work now; bounded in time, never raises."""
        question = self.health()
        return question is not None and question()

    def defect(self) -> str | None:
        """What is wrong with a process that answers, if only another start repairs it; None: nothing that is known."""
        return None

    @property
    def can_be_asked(self) -> bool:
        """Whether `probe` asks the server itself."""
        return True

    def prepare(self) -> None:  # noqa: B027 - most servers need nothing written
        """Write the files that the server reads when it starts."""

    def environment(self) -> Mapping[str, str]:
        """Variables added to our own environment."""
        return {}

    def addresses(self) -> dict[str, str]:
        """Where the server is reached: what a person or another program needs, by name."""
        return {}

    @property
    def pid(self) -> int | None:
        """The process id while the process lives."""
        return self._process.pid if self._process and not self._has_ended() else None

    @property
    def identity(self) -> ProcessIdentity | None:
        """The process while it lives, distinguished from any later one of its id."""
        return ProcessIdentity.of(self.pid) if self.pid else None

    @property
    def exit_status(self) -> int | None:
        """How the process ended; None while it lives, was not started or was killed by us."""
        return self._process.returncode if self._process and self._has_ended() else None

    @property
    def wanted(self) -> bool:
        """Whether it was started and not stopped since."""
        return self._wanted

    @property
    def state(self) -> ServerState:
        """Where the server is in its life, as far as we looked."""
        if self._process is None or not self._wanted:
            return ServerState.STOPPED
        if self._has_ended():
            return ServerState.FAILED
        if not self._answered:
            return ServerState.STARTING
        if not self.can_be_asked:
            return ServerState.UNKNOWN
        return ServerState.HEALTHY if self.healthy else ServerState.SILENT

    @property
    def memory_bytes(self) -> int:
        """Resident memory of the process and its children; 0 when it does not run."""
        return proportional_bytes(self.pid) if self.pid else 0

    @property
    def cpu_s(self) -> float:
        """Processor time of the process and its children; 0 when it does not run."""
        return cpu_seconds(self.pid) if self.pid else 0.0

    def start(self) -> None:
        """Start the process and return at once; `wait` says when it is healthy."""
        if self.pid is None:
            self.restarts = 0
            self._start()

    def _start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self.prepare()
        except OSError as error:
            if error.filename is None:  # a full disk names no file
                error.filename = str(self.folder)
            raise
        # The log goes on over restarts: what is shown of a failure begins at this start.
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        self.healthy, self._answered, self._wanted = False, False, True
        self._process = spawn(self.command(), log=self.log, folder=self.folder, env=self.environment())

    def check_alive(self) -> None:
        """Raise ServerFailed when the process is not there although nobody stopped it."""
        if self._process is None or not self._wanted:
            raise ServerFailed(self.name, "was not started", self.log, [])
        if self._has_ended():
            code = self._process.returncode
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"
            raise ServerFailed(self.name, how, self.log, self.last_lines())

    def keep_alive(self, *, revives: bool) -> bool:
        """Start the process again if it ended by itself, three times at most; whether `ended` says anything new.

        Raises ServerFailed, where it is not to be revived.
        """
        try:
            self.check_alive()
        except ServerFailed as error:
            if not revives:
                raise
            self._revivals += 1
            if self._revivals > _MAX_REVIVALS + 1:
                return False
            became = f"is not started again; its log is {self.log}"
            if again := self._revivals <= _MAX_REVIVALS:
                became = f"was started again, {self._revivals} of {_MAX_REVIVALS} times"
            # before the start, which may fail
            self.ended = f"{self.name} {error.reason} and {became}"
            if again:
                self.start()
            return True
        return False

    def check(self) -> bool:
        """Probe once; True when healthy. Raises ServerFailed when the process ended.

        One that answers for the first time and has a `defect` is stopped and started again, at most three times.
        """
        self.check_alive()
        healthy = self.probe()
        if healthy and not self._answered and (defect := self.defect()) is not None:
            if self.restarts + 1 >= _MAX_STARTS:
                raise ServerFailed(
                    self.name, f"{defect} after each of {_MAX_STARTS} starts", self.log, self.last_lines()
                )
            # In order: what a kill leaves behind may be what the defect came from.
            self.stop()
            self._start()
            self.restarts += 1
            return False
        self.note(healthy)
        return self.healthy

    def note(self, healthy: bool) -> None:
        """Keep what `probe` said, wherever it was asked."""
        self.healthy = healthy
        self._answered = self._answered or healthy

    def wait(self, timeout_s: float | None = None) -> None:
        """Return when healthy; raises ServerFailed when it ends or the time is over."""
        wait_all([self], timeout_s)

    def stop(self, timeout_s: float | None = None) -> None:
        """SIGTERM to its process group, SIGKILL when the time is over; returns when it is gone."""
        self._wanted = self.healthy = False
        if self._process is None:
            return
        self._signal(signal.SIGTERM)
        deadline = time.monotonic() + (self.stop_timeout_s if timeout_s is None else timeout_s)
        while not self._has_ended() and time.monotonic() < deadline:
            time.sleep(_STOP_POLL_S)
        self.kill()

    def kill(self) -> None:
        """SIGKILL to its process group, as a power cut would; returns when it is gone."""
        self._wanted = self.healthy = False
        if self._process is None:
            return
        self._signal(signal.SIGKILL)
        if self._process.returncode is None:
            self._process.wait(10)
        self.stopped(self._process.returncode)
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
        """Whether the process is gone; what is left of its group is killed before its id can be another's."""
        process = self._process
        if process is None or process.returncode is not None:
            return True
        # One thread at a time: a second one would signal the group when its id may be another's already.
        with self._reaping:
            if process.returncode is None and os.waitid(os.P_PID, process.pid, _ENDED) is not None:
                self._signal(signal.SIGKILL)
                process.wait(10)
        return process.returncode is not None

    def _signal(self, number: signal.Signals) -> None:
        # As long as it was not waited for, its id is its own.
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


# Waybill's own daemons under the same supervision.


class DaemonProcess(Server):
    """Any command under supervision: `python -m <module> <arguments>`, or a program by its path.

    `healthy_when` is asked until it says yes (see `http_health`); without it the daemon counts as started once it has
    lived for `settle_s` seconds, and nobody knows whether it is healthy.
    """

    kind = "daemon"
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
        self._env = dict(env or {})
        self._healthy_when = healthy_when
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
        settle_s: float = 0.5,
    ) -> Self:
        """A module of ours, run by this interpreter."""
        command = [sys.executable, "-m", module, *arguments]
        return cls(name, command, folder, env=env, healthy_when=healthy_when, addresses=addresses, settle_s=settle_s)

    def command(self) -> Sequence[str]:
        """As given."""
        return self._command

    def environment(self) -> Mapping[str, str]:
        """As given; output is not buffered, so that the log's last lines are the last ones."""
        return {"PYTHONUNBUFFERED": "1", **self._env}

    def addresses(self) -> dict[str, str]:
        """As given."""
        return self._addresses

    def start(self) -> None:
        """Start the process and return at once."""
        self._started_at = time.monotonic()
        super().start()

    def health(self) -> Health | None:
        """`healthy_when` where it is a question that other processes can ask too (`http_health` gives one)."""
        return self._healthy_when if isinstance(self._healthy_when, HttpHealth) else None

    @property
    def can_be_asked(self) -> bool:
        """Whether there is a `healthy_when`."""
        return self._healthy_when is not None

    def probe(self) -> bool:
        """Ask `healthy_when`, or wait for the daemon to settle."""
        if self._healthy_when:
            return self._healthy_when()
        return time.monotonic() - self._started_at >= self._settle_s
