"""waybill topology plan | apply | verify | watch."""

import json
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from prometheus_client import start_http_server
from rich.console import Console
from rich.table import Table

from geo.replication.admin import AdminClient
from geo.replication.apply import admins, read_plan
from geo.replication.apply import apply as apply_topology
from geo.replication.errors import ReplicationError
from geo.replication.model import Topology
from geo.replication.observe import LinkState, Observation, observe
from geo.replication.plan import Change
from geo.replication.probe import verify as verify_links
from geo.replication.watch import ReplicationCollector
from settings import SettingsError, load

__all__ = ["app"]

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
    help="Plan, apply, verify and watch geo-replication.",
)
console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)

File = Annotated[Path, typer.Option("--topology", envvar="WAYBILL_TOPOLOGY", help="The topology file, with addresses.")]
Token = Annotated[str | None, typer.Option(envvar="WAYBILL_ADMIN_TOKEN", help="Bearer token for the admin interfaces.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of a table.")]
# Where a local stack that runs in its default folder keeps its own.
LOCAL = Path("var/local/topology.toml")


@app.command()
def plan(topology: File = LOCAL, token: Token = None, as_json: AsJson = False) -> None:
    """Print what differs. Exit status: 0 nothing, 2 something, 1 trouble."""
    with _opened(topology, token) as (wanted, clients):
        changes = read_plan(wanted, clients)
    _show_changes(changes, as_json, "nothing to change")
    raise typer.Exit(2 if changes else 0)


@app.command()
def apply(
    topology: File = LOCAL,
    token: Token = None,
    allow_delete: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SUBJECT", help="Also make the change of this subject that deletes data; may be repeated."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make the clusters what the topology says. Exit status: 0 done, 1 trouble."""
    with _opened(topology, token) as (wanted, clients):
        done = apply_topology(wanted, clients, allow_delete=allow_delete or ())
    if as_json:
        _json(done.model_dump(mode="json"))
        return
    _show_changes(done.changed, False, "nothing to change")
    for change in done.held_back:
        words = f"held back, it would delete data: {change}  (--allow-delete {shlex.quote(change.subject)})"
        console.print(words, style="yellow", markup=False, soft_wrap=True)


@app.command()
def verify(
    topology: File = LOCAL,
    token: Token = None,
    timeout_s: Annotated[float, typer.Option("--timeout", help="Seconds that a probe may take.", min=0.1)] = 15.0,
    as_json: AsJson = False,
) -> None:
    """Send a probe through every link. Exit status: 0 all links are good, 1 one is not."""
    with _opened(topology, token) as (wanted, clients):
        links = verify_links(wanted, clients, timeout_s=timeout_s)
    if as_json:
        _json([link.model_dump(mode="json") for link in links])
    else:
        console.print(_links_table(links))
    raise typer.Exit(0 if all(link.is_good for link in links) else 1)


@app.command()
def watch(
    *,
    topology: File = LOCAL,
    token: Token = None,
    port: Annotated[int, typer.Option(help="Where Prometheus reads the metrics; 0: nowhere.", min=0, max=65535)] = 9464,
    interval_s: Annotated[float, typer.Option("--interval", help="Seconds between two looks.", min=0.2)] = 5.0,
    looks: Annotated[int, typer.Option(help="Stop after so many; 0: never.", min=0)] = 0,
    as_json: AsJson = False,
) -> None:
    """Export replication lag, connections and the age of the last cursor snapshot as metrics."""
    collector = ReplicationCollector()
    with _opened(topology, token) as (wanted, clients):
        if port:
            start_http_server(port, registry=collector.registry())
        look = 0
        while True:
            seen = observe(wanted, clients, time.time)
            collector.show(seen)
            _json(seen.model_dump(mode="json")) if as_json else console.print(_summary(seen), markup=False)
            look += 1
            if look == looks:
                return
            time.sleep(interval_s)


@contextmanager
def _opened(topology: Path, token: str | None) -> Iterator[tuple[Topology, dict[str, AdminClient]]]:
    try:
        wanted = load(Topology, topology)
        with admins(wanted, token) as clients:
            yield wanted, clients
    except (ReplicationError, SettingsError) as trouble:
        errors.print(str(trouble), style="red", markup=False)
        raise typer.Exit(1) from trouble


def _show_changes(changes: list[Change] | tuple[Change, ...], as_json: bool, none: str) -> None:
    if as_json:
        _json([change.model_dump(mode="json") for change in changes])
        return
    for change in changes:
        danger = f"  (deletes data: {change.subject})" if change.deletes_data else ""
        console.print(f"{change}{danger}", markup=False, style="yellow" if danger else None, soft_wrap=True)
    if not changes:
        console.print(none)


def _links_table(links: list[LinkState]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("namespace", "link", "state"):
        table.add_column(column)
    for column in ("backlog", "latency"):
        table.add_column(column, justify="right")
    table.add_column("problem", overflow="fold")
    for link in links:
        state = "[green]connected[/]" if link.connected else "[red]disconnected[/]"
        latency = f"{link.latency_s * 1000:.0f} ms" if link.latency_s is not None else ""
        row = (link.namespace, f"{link.source} -> {link.target}", state, f"{link.backlog:,}", latency, link.problem)
        table.add_row(*row)
    return table


def _summary(seen: Observation) -> str:
    connected = sum(link.connected for link in seen.links)
    waiting = sum(link.backlog for link in seen.links)
    lag = max((link.delay_s for link in seen.links), default=0)
    behind = max((cursor.behind_s or 0 for cursor in seen.cursors), default=0)
    words = f"{connected} of {len(seen.links)} links connected, {waiting:,} messages waiting, lag {lag:.0f} s"
    words += f", cursors at most {behind:.1f} s behind"
    return words + "".join(f", {cluster} unreachable" for cluster in seen.unreachable)


def _json(value: object) -> None:
    print(json.dumps(value, indent=2, sort_keys=True))  # noqa: T201


if __name__ == "__main__":
    app()
