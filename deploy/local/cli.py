"""waybill up, down, status and link: the local stack on the command line."""

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live

from deploy.local.background import DETACHED_LOG, start_in_background, stop_running
from deploy.local.errors import LocalStackError, StackNotRunning
from deploy.local.folder import empty
from deploy.local.object_store import LakePlace
from deploy.local.server import Server
from deploy.local.spark_cluster import SparkClusterSettings
from deploy.local.stack import DEFAULT_TOPOLOGY, LocalStack, StackSettings
from deploy.local.stack_state import StackState
from deploy.local.view import INSECURE, Announced, StackView, asked, links_table, servers_table, settings_line
from geo.replication import ReplicationError, Topology
from waybill.daemon.signals import raise_on_signals
from waybill.settings import SettingsError, load

__all__ = ["down", "link", "status", "up"]

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
    detach: Annotated[bool, typer.Option("--detach", help="Return when all is ready, and leave it running.")] = False,
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="First delete everything in the folder, which must be one that waybill made."),
    ] = False,
    *,
    lake: Annotated[LakePlace, typer.Option(help="`s3` starts an S3 server too, with a bucket.")] = LakePlace.FOLDER,
    spark_cluster: Annotated[
        bool, typer.Option("--spark-cluster", help="Also a Spark cluster: a master and two workers.")
    ] = False,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Open to everybody on this machine, in plain text.")
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
    """Ask every server now; show them with addresses, memory and links.

    Exit status: 0 ready and all healthy, 1 something is not, or nobody knows, 3 not running.

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
    silent: Annotated[bool, typer.Option("--silent", help="cut: keep connections, move no byte.")] = False,
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
