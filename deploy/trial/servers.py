"""The servers of a trial: the stack and the centre's jobs, and whatever is added; how they start, and how all end.

This module imports little: the stack and Spark start while `deploy.trial.trial` is still imported.
"""

from __future__ import annotations

import json
import os
import queue
import secrets
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil

from deploy.local import DaemonProcess, LocalStackError, PortBook, Server, StackNotRunning, StackState
from deploy.local.cli import start_in_background, stop_running
from deploy.local.errors import StackInUse
from deploy.local.folder import claim, hold, holder
from deploy.local.stack import DEFAULT_TOPOLOGY
from deploy.local.stack_state import Phase, wait_for_stack
from deploy.trial.errors import TrialError
from deploy.trial.files import one_region
from deploy.trial.ladder import Component, ComponentSeen, FenceEntered, LineDrafted, Observation, RecordsStored

TENANT: Final = "fleet"
HOST: Final = "127.0.0.1"
POLL_S: Final = 0.2
_STOP_S: Final = 90.0
_ORDERLY_S: Final = 20.0
_CENTRE: Final = "centre"
_MAX_SEEN: Final = 10_000
_FAILURES: Final = (LocalStackError, TrialError, OSError)


class Place(NamedTuple):
    """Degrees."""

    latitude: float
    longitude: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSettings:
    """`port`: of the vehicle's broker; 0: a free one. `token_file`: a token that was issued before; None: the trial
    registers the device. `preset`: of the messages; "": native. `is_kept`: files stay. `place`: where the fence is
    made before the first fix is heard; None: around that fix.
    """

    folder: Path
    device: str
    region: str = "eu"
    port: int = 0
    token_file: Path | None = None
    preset: str = ""
    is_kept: bool = False
    place: Place | None = None

    @property
    def account(self) -> str:
        """The id of the account, its tariff and its fence: such ids have small letters."""
        return self.device.lower()


@dataclass(slots=True)
class TrialServers:
    """Starts servers, and threads whose observations are in `seen`, bounded. `stop` ends what it started.

    `settings.folder` is absolute.
    """

    settings: TrialSettings
    seen: queue.Queue[Observation] = field(default_factory=lambda: queue.Queue(_MAX_SEEN))
    ended: threading.Event = field(default_factory=threading.Event)
    held: ExitStack = field(default_factory=ExitStack)
    """What is closed when all has ended."""
    book: PortBook = field(init=False)
    starts_stack: bool = False
    _servers: list[Server] = field(default_factory=list)
    _threads: list[threading.Thread] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _failed: LocalStackError | None = None
    """Why the stack did not start."""
    _no_stack: threading.Event = field(default_factory=threading.Event)
    """The trial has ended, or the stack did not start."""
    _goes: bool = False
    """Whether the device's folder is removed at the end: one that an earlier trial kept stays."""

    @property
    def folder(self) -> Path:
        """Of this device, in the stack's folder."""
        return self.settings.folder / "try" / self.settings.device

    @property
    def _ports_file(self) -> Path:
        return self.settings.folder / "try" / f"{self.settings.device}.ports.json"

    def start(self) -> None:
        """Begins to start the jobs of the centre and, unless it runs, the stack. Raises TrialError, LocalStackError,
        OSError.
        """
        settings = self.settings
        if settings.port:
            check_port_free(settings.port)
        claim(settings.folder)
        settings.folder.chmod(0o700)
        self._hold_stack()
        self._goes = not (settings.is_kept or self.folder.exists())
        self.folder.mkdir(parents=True, exist_ok=True)
        self.book = PortBook(self._ports_file)
        self.starts_stack = holder(settings.folder) is None
        self.say(ComponentSeen(Component.GATEWAY, False))
        if self.starts_stack:
            self.run(self._stack, Component.STACK)
        self.run(self._centre, Component.CENTRE)

    def _hold_stack(self) -> None:
        """Two ingests of one lake would end each other. Raises TrialError."""
        try:
            self.held.enter_context(hold(self.settings.folder / "try"))
        except StackInUse as error:
            reason = f"another `waybill try` runs on the stack in {self.settings.folder}: end it with Ctrl-C"
            raise TrialError(reason, "waybill try --folder var/second   # has a stack of its own") from error

    def stop(self) -> None:
        """Ends everything that this trial started, the newest first; a stack that ran before stays."""
        self.ended.set()
        self._no_stack.set()
        with self._lock:
            servers = [*reversed(self._servers)]
        for server in servers:
            if server.name == _CENTRE and server.pid is not None:
                # without its JVM, which is of the same group: a micro-batch that is cut is read again one by one
                with suppress(ProcessLookupError):
                    os.kill(server.pid, signal.SIGTERM)
                _wait_for_end(server)
            server.stop()
        ends_s = time.monotonic() + _STOP_S
        if self.starts_stack:
            self._stop_stack(ends_s)
        for thread in self._threads:
            thread.join(max(ends_s - time.monotonic(), 0.0))
        if self._goes:
            shutil.rmtree(self.folder, ignore_errors=True)
            self._ports_file.unlink(missing_ok=True)
        # last: from here on another trial may start
        self.held.close()

    def _stop_stack(self, ends_s: float) -> None:
        """Also a stack that is only starting: its supervisor may not have the folder yet."""
        starting = next((one for one in self._threads if one.name == "_stack"), None)
        if starting is None:
            return
        while time.monotonic() < ends_s and (starting.is_alive() or holder(self.settings.folder) is not None):
            with suppress(StackNotRunning, psutil.Error):
                stop_running(self.settings.folder)
            time.sleep(POLL_S)

    def run(
        self, work: Callable[[], None], component: Component, failures: tuple[type[Exception], ...] = _FAILURES
    ) -> None:
        """Runs work in a thread; its failures are observed as of this component."""

        def guarded() -> None:
            try:
                work()
            except failures as error:
                if not self.ended.is_set():
                    self.say(ComponentSeen(component, False, str(error), getattr(error, "command", "")))

        thread = threading.Thread(target=guarded, name=work.__name__, daemon=True)
        self._threads.append(thread)
        thread.start()

    def say(self, seen: Observation) -> None:
        with suppress(queue.Full):
            self.seen.put_nowait(seen)

    def add(self, server: Server) -> Server:
        """Starts a server, unless the trial has ended meanwhile."""
        with self._lock:
            if self.ended.is_set():
                raise TrialError("the trial has ended")
            self._servers.append(server)
            server.start()
        return server

    # The stack, and the jobs of the centre.

    def _stack(self) -> None:
        self.say(ComponentSeen(Component.STACK, False))
        arguments = list[str]()
        # a stack that was here before has data in its regions' clusters
        if not (self.settings.folder / f"pulsar-{self.settings.region}").is_dir():
            topology = self.settings.folder / "try" / "topology.toml"
            topology.write_text(one_region(DEFAULT_TOPOLOGY.read_text(), self.settings.region))
            arguments = ["--topology", str(topology)]
        try:
            start_in_background(self.settings.folder, arguments)
        except LocalStackError as error:
            self._failed = error
            self._no_stack.set()
            raise
        self.say(ComponentSeen(Component.STACK, True))

    def stack_addresses(self) -> StackState:
        """The addresses of the stack, which are known before it is ready. Raises TrialError, LocalStackError."""
        state = wait_for_stack(self.settings.folder, self._no_stack, ("starting", "connecting", "ready"))
        if state is None:
            raise self._failed or TrialError("interrupted")
        return state

    def wait_for_stack(self, *phases: Phase) -> bool:
        """Whether the stack came into one of these phases, or is ready, before the trial ended.

        Raises LocalStackError.
        """
        return wait_for_stack(self.settings.folder, self._no_stack, phases or ("ready",)) is not None

    def _centre(self) -> None:
        self.say(ComponentSeen(Component.CENTRE, False))
        events = self.folder / "centre.jsonl"
        events.unlink(missing_ok=True)
        events.touch(mode=0o600)
        words = [str(self.settings.folder), TENANT, self.settings.device, self.settings.account, str(events)]
        centre = self.add(DaemonProcess.python(_CENTRE, "deploy.trial.centre", words, self.folder / "centre"))
        with events.open(encoding="utf-8") as lines:
            while not self.ended.wait(POLL_S):
                for line in lines:
                    self.say(_of_centre(json.loads(line)))
                if centre.pid is None and not self.ended.is_set():
                    raise TrialError(f"the jobs have ended; the log is {centre.log}", f"tail {centre.log}")


def _of_centre(event: dict[str, Any]) -> Observation:
    match event["event"]:
        case "records":
            return RecordsStored(event["count"], event["newest"])
        case "entered":
            return FenceEntered(event["place"], event["entries"])
        case "draft":
            return LineDrafted(tuple(event["lines"]), event["net"], event["agrees"], event["period"], event["doubt"])
        case "unrated":
            return ComponentSeen(Component.BILL, False, event["why"])
        case "failed":
            return ComponentSeen(Component.CENTRE, False, event["why"])
        case name:
            return ComponentSeen(Component.CENTRE, name == "ready")


def _wait_for_end(server: Server) -> None:
    ends_s = time.monotonic() + _ORDERLY_S
    while server.pid is not None and time.monotonic() < ends_s:
        time.sleep(POLL_S)


def new_device_name() -> str:
    return f"try-{secrets.token_hex(2)}"


def check_port_free(port: int) -> None:
    """Raises TrialError that names the process which has the port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            owner = _listener(port)
            held = f" by {owner}" if owner else ""
            command = "waybill try   # without --port it takes a free one"
            raise TrialError(f"port {port} is taken{held}: {error.strerror}", command) from error


def _listener(port: int) -> str:
    with suppress(psutil.Error, OSError):
        for one in psutil.net_connections("tcp"):
            if one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.port == port and one.pid:
                return f"{psutil.Process(one.pid).name()} (process {one.pid})"
    return ""
