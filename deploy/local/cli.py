"""waybill up, down, status and link: the local stack on the command line."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from deploy.local.errors import (
    FolderDamaged,
    LinkControlError,
    LocalStackError,
    ServerFailed,
    StackInUse,
    StackNotRunning,
)
from deploy.local.folder import ProcessIdentity, claim, empty, holder
from deploy.local.object_store import LakePlace
from deploy.local.server import Server
from deploy.local.spark_cluster import SparkClusterSettings
from deploy.local.stack import DEFAULT_TOPOLOGY, LocalStack, StackSettings
from deploy.local.stack_settings import settings_files
from deploy.local.stack_state import ServerRecord, StackState, running
from geo.replication import ReplicationError, Topology
from waybill.daemon.signals import raise_on_signals
from waybill.settings import SettingsError, load

# `waybill up --detach` and `waybill down`.

DETACHED_LOG = "up.log"
_POLL_S = 0.2
_STOP_S = 60.0


def start_in_background(
    folder: Path, arguments: Sequence[str], *, timeout_s: float, on_state: Callable[[StackState], None]
) -> StackState:
    """Run `waybill up` with these arguments in a session of its own; return when its stack is ready.

    Raises ServerFailed with the last lines of its output when it ends before, or is late; FolderNotOurs, StackInUse.
    """
    # Claimed first: the log of the supervisor must not be written into a folder that is somebody else's.
    claim(folder)
    if holder(folder) is not None:
        raise StackInUse(folder)
    log = folder / DETACHED_LOG
    with log.open("wb") as output:
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "waybill", "up", "--folder", str(folder), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # In a session of its own the terminal's Ctrl-C and hang-up do not reach it.
            start_new_session=True,
        )
    try:
        state = _when_ready(supervisor, folder, timeout_s, on_state)
    except BaseException:  # an interrupted start leaves nothing running
        _end(supervisor)
        raise
    if state is not None:
        return state
    # Asked before `_end`, after which every supervisor has ended.
    ended = supervisor.poll() is not None
    reason = "ended before the stack was ready" if ended else f"was not ready after {timeout_s} s"
    _end(supervisor)
    raise ServerFailed("waybill up", reason, log, log.read_text(errors="replace").splitlines()[-40:])


def _when_ready(
    supervisor: subprocess.Popen[bytes], folder: Path, timeout_s: float, on_state: Callable[[StackState], None]
) -> StackState | None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and supervisor.poll() is None:
        state = _state(folder)
        # Another stack may have taken the folder since it was looked at: its state says nothing of ours.
        if state is not None and state.supervisor.pid == supervisor.pid:
            on_state(state)
            if state.phase == "ready":
                return state
        time.sleep(_POLL_S)
    return None


def _end(supervisor: subprocess.Popen[bytes]) -> None:
    supervisor.terminate()
    try:
        supervisor.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        supervisor.kill()  # its servers are tied to it by the kernel and end with it
        supervisor.wait(_STOP_S)


def stop_running(folder: Path, *, timeout_s: float = _STOP_S) -> bool:
    """Stop the stack of this folder; False when it had to be killed. Raises StackNotRunning, PermissionError."""
    supervisor = running(folder)
    if not supervisor.send(signal.SIGTERM):
        raise StackNotRunning(folder)
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if not _runs(folder, supervisor):
            return True
        time.sleep(_POLL_S)
    supervisor.send(signal.SIGKILL)  # its servers are tied to it by the kernel and end with it
    return False


def _runs(folder: Path, supervisor: ProcessIdentity) -> bool:
    try:
        return running(folder) == supervisor
    except StackNotRunning:
        return False


def _state(folder: Path) -> StackState | None:
    try:
        return StackState.load(folder)
    except (StackNotRunning, FolderDamaged):
        return None


# The stack as Rich tables.

_STYLES = {"healthy": "green", "starting": "yellow", "unknown": "yellow", "stopped": "dim"}
_MB = 1024 * 1024

INSECURE = "INSECURE: no TLS and no authentication; everybody on this machine can read and write"
"""What is said of a stack that was started with `--insecure`, wherever it is shown."""


class StackView:
    """The servers of a stack as they are at the moment of drawing."""

    def __init__(self, stack: LocalStack) -> None:
        self._stack = stack
        self._busy = Spinner("dots")

    def __rich__(self) -> RenderableType:
        records = self._stack.records()
        words = {
            "starting": "starting servers",
            "connecting": "applying the topology",
            "ready": f"{asked(records, self._stack.asked_s)}; Ctrl-C stops everything",
            "stopping": "stopping",
            "stopped": "stopped",
            "failed": "failed",
        }[self._stack.phase]
        if self._stack.phase in ("ready", "failed"):
            insecure = [Text(INSECURE, style="bold red")] if self._stack.settings.insecure else []
            written = Text(settings_line(self._stack.folder), style="dim")
            ended = [Text(line, style="bold red") for line in self._stack.ended]
            return Group(servers_table(records), *insecure, *ended, written, Text(words, style="bold"))
        self._busy.update(text=words)
        return Group(servers_table(records), self._busy)


class Announced:
    """What is said of servers while a stack starts: each state once, and nothing of one that was not started yet."""

    def __init__(self) -> None:
        self._started: set[str] = set()
        self._said: set[tuple[str, str]] = set()

    def lines(self, records: Iterable[ServerRecord]) -> list[str]:
        """The lines for what is new."""
        found = list[str]()
        for record in records:
            if record.state != "stopped":
                self._started.add(record.name)
            is_new = (record.name, record.state) not in self._said and record.name in self._started
            if is_new and record.state != "starting":
                self._said.add((record.name, record.state))
                found.append(f"{record.name}: {record.state}")
        return found


def settings_line(folder: Path) -> str:
    """Which settings are in the folder of a stack for whoever works on it; "": none."""
    daemons = sorted(folder.glob("access-*/access.toml"))
    names = [str(file.relative_to(folder)) for file in (*settings_files(folder), *daemons)]
    return f"settings in {folder}: {', '.join(names)}" if names else ""


def asked(records: Sequence[ServerRecord], asked_s: float) -> str:
    """How many servers were healthy when they were asked, and when that was."""
    healthy = sum(record.state == "healthy" for record in records)
    when = datetime.fromtimestamp(asked_s, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return f"{healthy} of {len(records)} servers healthy when asked at {when} UTC"


def servers_table(records: Iterable[ServerRecord]) -> Table:
    """One row for each server: state, process, memory, addresses; the sum of the memory below."""
    table = Table(box=None, pad_edge=False, header_style="bold", show_footer=True)
    total = 0
    rows = []
    for record in records:
        total += record.memory_bytes
        where = "  ".join(record.addresses.values()) if record.kind != "links" else f"{len(record.addresses)} links"
        state = Text(record.state, style=_STYLES.get(record.state, "bold red"))
        memory = f"{record.memory_bytes // _MB} MB" if record.pid else ""
        rows.append((record.name, state, str(record.pid or ""), memory, where))
    table.add_column("server", footer="all")
    table.add_column("state")
    table.add_column("pid", justify="right")
    table.add_column("memory", justify="right", footer=f"{total // _MB} MB")
    table.add_column("address", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def links_table(state: StackState) -> Table:
    """One row for each link: whether it is cut, its delay, and what it carried."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("link", "state", "delay", "connections", "bytes there", "bytes back"):
        table.add_column(column, justify="left" if column in ("link", "state") else "right")
    for name in sorted(state.links):
        try:
            link = state.link(name).state()
        except LinkControlError:
            table.add_row(name, Text("no answer", style="bold red"))
            continue
        how = ("cut, silent" if link.silent else "cut") if link.cut else "open"
        delay = f"{link.delay_s * 1000:.0f} ms"
        carried = f"{link.bytes_forward:,}", f"{link.bytes_back:,}"
        table.add_row(name, Text(how, style="red" if link.cut else "green"), delay, str(link.connections), *carried)
    return table


Folder = Annotated[Path, typer.Option(envvar="WAYBILL_STACK", help="The stack's own folder.")]
DEFAULT_FOLDER = Path("var/local")
# Twice the stack's own bound: for its clusters, and for what needs them.
_START_S = 600.0
_SECRETS: dict[str, Any] = {
    "links": {"__all__": {"secret": True}},
    "servers": {"__all__": {"health": {"secret": True}}},
}
_WATCH_S = 0.5

console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)


def up(
    folder: Folder = DEFAULT_FOLDER,
    topology: Annotated[
        Path, typer.Option(help="Clusters, regions and namespaces.", show_default="the stack's own")
    ] = DEFAULT_TOPOLOGY,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return when all servers are ready, and leave them running.")
    ] = False,
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="First delete the folder's contents; only a folder created by waybill."),
    ] = False,
    *,
    lake: Annotated[LakePlace, typer.Option(help="`s3` also starts an S3 server with a bucket.")] = LakePlace.FOLDER,
    spark_cluster: Annotated[
        bool, typer.Option("--spark-cluster", help="Also a Spark cluster: a master and two workers.")
    ] = False,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="No TLS and no authentication: open to everybody on this machine.")
    ] = False,
) -> None:
    """Start the local stack: Pulsar clusters, regional MQTT brokers, and the links between them.

    Example: waybill up --detach --lake s3
    """
    size = StackSettings(lake=lake, spark=SparkClusterSettings() if spark_cluster else None, insecure=insecure)
    _warn_if(insecure)
    with _errors_as_messages():
        if detach:
            _detach(folder, topology, fresh, size)
        else:
            _foreground(folder, topology, fresh, size)


def down(folder: Folder = DEFAULT_FOLDER) -> None:
    """Stop the local stack; its data stays in the folder.

    Example: waybill down
    """
    with _errors_as_messages():
        in_order = stop_running(folder)
    console.print("stopped" if in_order else "killed: it did not stop in time")


def status(
    folder: Folder = DEFAULT_FOLDER,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Show every server with health, addresses and memory, and the links.

    Exit status: 0 ready and all healthy, 1 a server is unhealthy or unknown, 3 not running.

    Example: waybill status --json
    """
    with _errors_as_messages():
        state = StackState.load(folder).asked_now()
    if as_json:
        memory = {record.name: record.memory_bytes for record in state.servers}
        shown = state.model_dump(mode="json", exclude=_SECRETS)
        print(json.dumps(shown | {"memory_bytes": memory}, indent=2))  # noqa: T201
    else:
        console.print(servers_table(state.servers), "", links_table(state), "", _summary(state))
        _warn_if(state.is_insecure)
    raise typer.Exit(0 if state.is_well else 1)


def _warn_if(is_insecure: bool) -> None:
    if is_insecure:
        errors.print(INSECURE, style="bold red", soft_wrap=True)


def _summary(state: StackState) -> str:
    phase = "not ready" if state.phase == "ready" and not state.is_well else state.phase
    detail = f" ({state.detail})" if state.detail else ""
    return f"stack: {phase}{detail}; {asked(state.servers, state.asked_s)}"


class LinkAction(StrEnum):
    """What can be done to a link."""

    CUT = "cut"
    HEAL = "heal"
    DELAY = "delay"
    STATE = "state"


def link(
    name: Annotated[str, typer.Argument(help='Such as "eu" (vehicles to the broker) or "eu->hq" (replication).')],
    action: LinkAction,
    folder: Folder = DEFAULT_FOLDER,
    silent: Annotated[bool, typer.Option("--silent", help="cut: keep connections open, but move no data.")] = False,
    seconds: Annotated[float, typer.Option(help="delay: added each way.", min=0, max=10)] = 0.0,
) -> None:
    """Cut, heal or slow a link of the running stack.

    Example: waybill link eu delay --seconds 0.5
    """
    with _errors_as_messages():
        controlled = StackState.load(folder).link(name)
        done = {
            LinkAction.CUT: lambda: controlled.cut(silent=silent),
            LinkAction.HEAL: controlled.heal,
            LinkAction.DELAY: lambda: controlled.delay(seconds),
            LinkAction.STATE: controlled.state,
        }[action]()
    console.print_json(done.model_dump_json())


def _foreground(folder: Path, topology: Path, fresh: bool, settings: StackSettings) -> None:
    on_change = None if console.is_terminal else _print_change
    stack = LocalStack(folder, topology=topology, settings=settings, on_change=on_change)
    if fresh:
        # `--detach` opened that log before this process began, and it is this process's own output.
        empty(folder, keep=frozenset({DETACHED_LOG}))
    # Before the first server: by a signal's default action servers would be killed with us, not stopped in order.
    # SystemExit: a KeyboardInterrupt that passes through code run by `exec` (pydantic's, for instance) makes CPython
    # end itself by SIGINT at its exit, although it was caught.
    with raise_on_signals((signal.SIGTERM, signal.SIGHUP, signal.SIGINT), SystemExit(0)):
        if console.is_terminal:
            with Live(StackView(stack), console=console, refresh_per_second=4):
                _run(stack)
        else:
            _run(stack)


def _run(stack: LocalStack) -> None:
    with stack:
        if not console.is_terminal:
            console.print("\n".join([*filter(None, [settings_line(stack.folder)]), "ready"]), soft_wrap=True)
        while True:
            stack.check(goes_on=True)
            time.sleep(_WATCH_S)


def _detach(folder: Path, topology: Path, fresh: bool, size: StackSettings) -> None:
    load(Topology, topology)  # a fault in it is said here, not in the log of the process in the background
    announced = Announced()

    def show(state: StackState) -> None:
        for line in announced.lines(state.servers):
            console.print(line)

    arguments = ["--topology", str(topology.absolute()), "--lake", size.lake, *(["--fresh"] if fresh else [])]
    arguments += ["--spark-cluster"] if size.spark else []
    arguments += ["--insecure"] if size.insecure else []
    state = start_in_background(folder.absolute(), arguments, timeout_s=_START_S, on_state=show)
    console.print(servers_table(state.servers), "")
    if line := settings_line(folder):
        console.print(line, soft_wrap=True)
    # a command that was wrapped cannot be copied
    console.print(f"running in the background; `waybill down --folder {folder}` stops it", soft_wrap=True)


def _print_change(server: Server) -> None:
    console.print(f"{server.name}: {server.state}")


@contextmanager
def _errors_as_messages() -> Iterator[None]:
    """In words, never as a stack trace. Exit status 3 when no stack runs, 78 for a wrong topology file, else 1."""
    try:
        yield
    except StackNotRunning as absent:
        errors.print(str(absent), markup=False, soft_wrap=True)
        raise typer.Exit(3) from absent
    except (LocalStackError, ReplicationError, SettingsError, OSError) as error:
        errors.print(str(error), style="red", markup=False, soft_wrap=True)
        raise typer.Exit(os.EX_CONFIG if isinstance(error, SettingsError) else 1) from error
