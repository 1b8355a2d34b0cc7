"""waybill up, down, status and link: the local stack on the command line."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import psutil
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from deploy.local.errors import LinkControlError, LocalStackError, ServerFailed, StackInUse, StackNotRunning
from deploy.local.folder import claim, empty, holder, memory_bytes
from deploy.local.links import LinkState
from deploy.local.object_store import LakePlace
from deploy.local.server import Server
from deploy.local.stack import DEFAULT_TOPOLOGY, LocalStack, StackSettings
from deploy.local.stack_state import StackState
from geo.replication import ReplicationError, Topology
from waybill.daemon.signals import raise_on_signals
from waybill.daemon.stack_daemons import DaemonStatus, read_daemons
from waybill.settings import SettingsError, load

# `waybill up --detach` and `waybill down`.

DETACHED_LOG = "up.log"
_POLL_S = 0.2
_STOP_S = 60.0
_START_S = 600.0
"""Twice the stack's own bound: for its clusters, and for what needs them."""


def start_in_background(folder: Path, arguments: Sequence[str], *, timeout_s: float = _START_S) -> StackState:
    """Run `waybill up` with these arguments in a session of its own; return when its stack is ready.

    Raises ServerFailed with the last lines of its output when it ends before, or is late; FolderNotOurs, StackInUse.
    """
    # Claimed first: the log must not be written into a folder that is not ours.
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
    deadline = time.monotonic() + timeout_s
    try:
        while time.monotonic() < deadline and supervisor.poll() is None:
            if holder(folder) == supervisor.pid and (state := _state(folder)) and state.phase == "ready":
                return state
            time.sleep(_POLL_S)
        reason = "ended before the stack was ready" if supervisor.poll() is not None else "was not ready in time"
        raise ServerFailed("waybill up", reason, log, log.read_text(errors="replace").splitlines()[-40:])
    except BaseException:  # an interrupted start leaves nothing running
        supervisor.terminate()
        try:
            supervisor.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            supervisor.kill()  # its servers are tied to it by the kernel and end with it
        raise


def _state(folder: Path) -> StackState | None:
    try:
        return StackState.load(folder)
    except LocalStackError:
        return None


def stop_running(folder: Path, *, timeout_s: float = _STOP_S) -> bool:
    """Stop the stack of this folder; False when it had to be killed. Raises StackNotRunning, psutil.Error."""
    supervisor = holder(folder)
    if supervisor is None:
        raise StackNotRunning(folder)
    process = psutil.Process(supervisor)
    # It may have ended meanwhile, and another process have its id; psutil signals only the process that it has seen.
    if holder(folder) != supervisor:
        raise StackNotRunning(folder)
    process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if holder(folder) != supervisor:
            return True
        time.sleep(_POLL_S)
    process.kill()  # its servers are tied to it by the kernel and end with it
    return False


# The stack as Rich tables.

_STYLES = {"healthy": "green", "starting": "yellow", "stopped": "dim"}
_MB = 1024 * 1024
_OLD_S = 60.0
"""Six times the interval at which a stack asks its servers."""
_MAX_IDLE = 6


def _servers_table(state: StackState) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", show_footer=True)
    memory = {server.name: memory_bytes(server.pid) // _MB if server.pid else 0 for server in state.servers}
    table.add_column("server", footer="all")
    table.add_column("state")
    table.add_column("pid", justify="right")
    table.add_column("memory", justify="right", footer=f"{sum(memory.values())} MB")
    table.add_column("address", overflow="fold")
    for server in state.servers:
        shown = Text(server.state, style=_STYLES.get(server.state, "bold red"))
        where = f"{len(server.addresses)} links" if server.name == "links" else "  ".join(server.addresses.values())
        table.add_row(server.name, shown, str(server.pid or ""), f"{memory[server.name]} MB", where)
    return table


def _links_table(links: Mapping[str, LinkState | None]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("link", "state", "delay", "connections", "bytes"):
        table.add_column(column, justify="left" if column in ("link", "state") else "right")
    for name, link in sorted(links.items()):
        if link is None:
            table.add_row(name, Text("no answer", style="bold red"))
            continue
        how = ("cut, silent" if link.silent else "cut") if link.cut else "open"
        shown = Text(how, style="red" if link.cut else "green")
        table.add_row(name, shown, f"{link.delay_s * 1000:.0f} ms", str(link.connections), f"{link.bytes_carried:,}")
    return table


def _link_states(state: StackState) -> dict[str, LinkState | None]:
    """None for a link whose control does not answer."""
    found: dict[str, LinkState | None] = {}
    for name in state.links:
        try:
            found[name] = state.link(name).state()
        except LinkControlError:
            found[name] = None
    return found


def _daemons_table(daemons: Iterable[DaemonStatus]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("daemon", "state", "pid", "settings"):
        table.add_column(column, justify="right" if column == "pid" else "left", overflow="fold")
    for one in daemons:
        style = "bold red" if one.is_wrong else _STYLES.get(one.state, "yellow")
        table.add_row(one.program, Text(one.state, style=style), str(one.pid or ""), Text(Path(one.config).name))
    return table


class StackProblem(NamedTuple):
    """What is wrong with a part of a stack, and the next command."""

    what: str
    problem: str
    next: str


def stack_problems(
    state: StackState,
    daemons: Iterable[DaemonStatus],
    links: Mapping[str, LinkState | None],
    folder: Path,
    now_s: float,
) -> list[StackProblem]:
    """One for each server, daemon and link that does not work. A daemon that was never started is none. Pure."""
    again = f"waybill down --folder {folder}; waybill up --detach --folder {folder}"
    found = []
    if state.phase != "ready":
        found.append(StackProblem("stack", f"{state.phase}{state.detail and f': {state.detail}'}", again))
    elif (age_s := now_s - state.asked_s) > _OLD_S:
        found.append(StackProblem("stack", f"its servers were last asked {age_s:.0f} s ago", again))
    found += [StackProblem(one.name, one.state, f"tail {one.log}") for one in state.servers if one.state != "healthy"]
    for one in daemons:
        if one.is_wrong:
            name = f"{one.program} {Path(one.config).name}"
            found.append(StackProblem(name, f"{one.state}{one.problem and f': {one.problem}'}", one.next))
    for name, link in sorted(links.items()):
        if link is None:
            found.append(StackProblem(f"link {name}", "its control does not answer", again))
        elif link.cut:
            heal = f"waybill link '{name}' heal --folder {folder}"
            found.append(StackProblem(f"link {name}", "cut: nothing passes", heal))
    return found


def _summary(state: StackState, daemons: Sequence[DaemonStatus], problems: Sequence[StackProblem]) -> str:
    healthy = sum(server.state == "healthy" for server in state.servers)
    when = datetime.fromtimestamp(state.asked_s, UTC).strftime("%Y-%m-%d %H:%M:%S")
    phase = "not ready" if state.phase == "ready" and problems else state.phase
    counts = Counter(one.state for one in daemons)
    of_daemons = ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none known"
    return (
        f"stack: {phase}; {healthy} of {len(state.servers)} servers healthy when asked at {when} UTC; daemons:"
        f" {of_daemons}"
    )


Folder = Annotated[Path, typer.Option(envvar="WAYBILL_STACK", help="Folder of the stack.")]
DEFAULT_FOLDER = Path("var/local")
_WATCH_S = 0.5
_SECRETS: dict[str, Any] = {"links": {"__all__": {"secret"}}}

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
) -> None:
    """Start the local stack: Pulsar clusters, regional MQTT brokers, and the links between them.

    Example: waybill up --detach --lake s3
    """
    with _errors_as_messages():
        if not detach:
            _foreground(folder, topology, fresh, StackSettings(lake=lake, spark=spark_cluster))
            return
        load(Topology, topology)  # a fault in it is reported here, not in the log of the background process
        arguments = ["--topology", str(topology.absolute()), "--lake", lake, *(["--fresh"] if fresh else [])]
        arguments += ["--spark-cluster"] if spark_cluster else []
        with console.status("starting servers"):
            state = start_in_background(folder.absolute(), arguments)
        console.print(_servers_table(state), "")
        # a command that was wrapped cannot be copied
        console.print(f"running in the background; `waybill down --folder {folder}` stops it", soft_wrap=True)


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
    """Show servers, gateways, agents, jobs and links: what is wrong with each, and the next command.

    Exit status: 0 nothing is wrong, 1 something is, 3 not running. A daemon that was never started is not wrong.

    Example: waybill status --json
    """
    with _errors_as_messages():
        state, daemons = StackState.load(folder), read_daemons(folder)
    links = _link_states(state)
    problems = stack_problems(state, daemons, links, folder, time.time())
    if as_json:
        more = {
            "daemons": [one.model_dump(mode="json") for one in daemons],
            "link_states": {name: None if one is None else one.model_dump(mode="json") for name, one in links.items()},
            "problems": [one._asdict() for one in problems],
        }
        print(json.dumps(state.model_dump(mode="json", exclude=_SECRETS) | more, indent=2))  # noqa: T201
    else:
        idle = [one for one in daemons if one.state == "not started"]
        console.print(_servers_table(state), "", _daemons_table(daemons), "", _links_table(links), "")
        for one in idle[:_MAX_IDLE]:
            console.print(f"to start: {one.next}", soft_wrap=True, markup=False)
        console.print()
        for what, problem, command in problems:
            console.print(Text(f"{what}: {problem}", style="red"), soft_wrap=True)
            # a command that was wrapped cannot be copied
            console.print(Text(f"    {command}"), soft_wrap=True)
        console.print(_summary(state, daemons, problems), soft_wrap=True)
    raise typer.Exit(1 if problems else 0)


class LinkAction(StrEnum):
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
        actions: dict[LinkAction, Any] = {
            LinkAction.CUT: lambda: controlled.cut(silent=silent),
            LinkAction.HEAL: controlled.heal,
            LinkAction.DELAY: lambda: controlled.delay(seconds),
            LinkAction.STATE: controlled.state,
        }
        done = actions[action]()
    console.print_json(done.model_dump_json())


def _foreground(folder: Path, topology: Path, fresh: bool, settings: StackSettings) -> None:
    stack = LocalStack(folder, topology=topology, settings=settings, on_change=_print_change)
    if fresh:
        # `--detach` opened that log before this process began, and it is this process's own output.
        empty(folder, keep=frozenset({DETACHED_LOG}))
    # Before the first server: by a signal's default action servers would be killed with us, not stopped in order.
    # SystemExit: a KeyboardInterrupt that passes through code run by `exec` (pydantic's, for instance) makes CPython
    # end itself by SIGINT at its exit, although it was caught.
    with raise_on_signals((signal.SIGTERM, signal.SIGHUP, signal.SIGINT), SystemExit(0)), stack:
        console.print(f"ready; settings and tokens are in {stack.folder}; Ctrl-C stops everything", soft_wrap=True)
        while True:
            stack.check()
            time.sleep(_WATCH_S)


def _print_change(server: Server) -> None:
    console.print(f"{server.name}: {server.state}")


@contextmanager
def _errors_as_messages() -> Iterator[None]:
    """Exit status 3 when no stack runs, 78 for a wrong topology file, else 1."""
    try:
        yield
    except StackNotRunning as absent:
        errors.print(str(absent), markup=False, soft_wrap=True)
        raise typer.Exit(3) from absent
    except (LocalStackError, ReplicationError, SettingsError, psutil.Error, OSError) as error:
        errors.print(str(error), style="red", markup=False, soft_wrap=True)
        raise typer.Exit(os.EX_CONFIG if isinstance(error, SettingsError) else 1) from error
