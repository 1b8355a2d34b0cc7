"""The commands `waybill topology plan | apply | verify | watch | broker-conf | chart-values | addresses`."""

from __future__ import annotations

import errno
import json
import os
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry
from pydantic import SecretStr
from rich.console import Console
from rich.table import Table

from geo.replication.admin import AdminClient
from geo.replication.apply import Applied, Inspection, admins, inspect_clusters
from geo.replication.apply import apply as apply_topology
from geo.replication.errors import NoAddress, ReplicationError, UnusableAccess
from geo.replication.model import Topology
from geo.replication.plan import Change
from geo.replication.pulsar_chart import TRUST_FILE, ChartOptions, as_yaml, chart_values
from geo.replication.pulsar_chart import addresses as addresses_of
from geo.replication.verification import LinkState, Observation, observe
from geo.replication.verification import verify as verify_links
from waybill.daemon.stack_folder import stack_advice, stack_file
from waybill.daemon.status_server import StatusServer, metrics_answer
from waybill.identity.broker_conf import ServerFiles, pulsar_security
from waybill.pulsar.pulsar_address import each_host
from waybill.pulsar.pulsar_client import PulsarAccess
from waybill.settings import SettingsError, load

# Broker configuration from a topology: ports and superuser roles.

_KEY_REFRESH_S = 60
"""A key of tokens that is retired is refused after so long."""


def broker_conf_lines(topology: Topology, cluster: str, issuer: str, tls: Path, token_file: Path) -> list[str]:
    """Lines of broker.conf. `tls`, `token_file`: paths on the brokers' machines. Raises NoAddress, UnusableAccess."""
    found = topology.clusters.get(cluster)
    if found is None or found.address is None:
        raise NoAddress(cluster)
    if not (tls.is_absolute() and token_file.is_absolute() and issuer.startswith("https://")):
        raise UnusableAccess("--tls and --token-file are whole paths (/etc/...), --issuer is an https:// address")
    urls = found.address.service_url, found.address.admin_url
    if not (urls[0].startswith("pulsar+ssl://") and urls[1].startswith("https://")):
        raise UnusableAccess(f"cluster {cluster}: its addresses must be pulsar+ssl:// and https://")
    broker_port, web_port = (urlsplit(each_host(url)[0]).port for url in urls)
    conf = pulsar_security(
        ServerFiles(tls / "certificate.pem", tls / "key.pem"),
        tls / "ca.pem",
        issuer=issuer,
        broker_token=token_file,
        superusers=topology.superusers_of(cluster),
        ports=(broker_port or 6651, web_port or 443),
        key_refresh_s=_KEY_REFRESH_S,
    )
    return [f"{name}={value}" for name, value in conf.items()]


# Links and observations on the terminal.


def links_table(links: Sequence[LinkState]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("namespace", "link", "state"):
        table.add_column(column)
    for column in ("backlog", "latency"):
        table.add_column(column, justify="right")
    table.add_column("problem", overflow="fold")
    for link in links:
        state = "[green]connected[/]" if link.connected else "[red]disconnected[/]"
        latency = f"{link.latency_s * 1000:.0f} ms" if link.latency_s is not None else ""
        row = (link.namespace, f"{link.source} -> {link.target}", state, _count(link.backlog), latency, link.problem)
        table.add_row(*row)
    return table


def _count(value: int | None) -> str:
    return "unknown" if value is None else f"{value:,}"


def summary(seen: Observation) -> str:
    connected = sum(link.connected for link in seen.links)
    waiting = [link.backlog for link in seen.links if link.backlog is not None]
    lags = [link.delay_s for link in seen.links if link.delay_s is not None]
    behind = [cursor.behind_s for cursor in seen.cursors if cursor.behind_s is not None]
    count = _count(sum(waiting) if waiting else None)
    words = f"{connected} of {len(seen.links)} links connected, {count} messages waiting"
    words += f", lag {max(lags):.0f} s" if lags else ", lag unknown"
    words += f", cursors at most {max(behind):.1f} s behind" if behind else ", cursors unknown"
    if unknown := len(seen.links) - len(waiting):
        words += f", {unknown} links unknown"
    return words + "".join(f", {cluster} unreachable" for cluster in seen.unreachable)


# Replication metrics.

_CLUSTER = ("cluster",)
_LINK = ("namespace", "source", "target")
_CURSOR = ("topic", "subscription", "cluster")

METRICS = {
    "waybill_replication_cluster_reachable": "1 when the cluster's admin interface answered",
    "waybill_replication_connected": "1 when every replicator of the link is connected",
    "waybill_replication_backlog_messages": "messages of the namespace that the target does not have yet",
    "waybill_replication_lag_seconds": "age of the oldest message that the target does not have yet",
    "waybill_replication_cursor_snapshot_age_seconds": "since the subscription's position last moved in this cluster",
    "waybill_replication_cursor_snapshot_behind_seconds": "how long before the furthest cluster's it last moved here",
    "waybill_replication_cursor_waiting_seconds": "age of the oldest of them; 0 when nothing waits",
    "waybill_replication_cursor_backlog_messages": "messages and markers that the subscription has not acknowledged",
    "waybill_replication_unknown_cursor_backlog_messages": "the same of a subscription that the topology does not name",
}


class ReplicationCollector(Collector):
    """Exports the last observation as metrics; what is no longer observed is no longer exported."""

    def __init__(self) -> None:
        self._last: Observation | None = None

    def registry(self) -> CollectorRegistry:
        """A registry with these metrics only."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return registry

    def update(self, observation: Observation) -> None:
        """Export this observation from now on."""
        self._last = observation

    def describe(self) -> Iterator[Metric]:
        yield from map(_gauge, METRICS)

    def collect(self) -> Iterator[Metric]:
        seen = self._last
        if seen is None:
            return
        gauges = {name: _gauge(name) for name in METRICS}

        def export(name: str, labels: Sequence[str], value: float | None) -> None:
            if value is not None:
                gauges[f"waybill_replication_{name}"].add_metric(labels, value)

        for cluster in sorted({link.source for link in seen.links} | set(seen.unreachable)):
            export("cluster_reachable", [cluster], cluster not in seen.unreachable)
        for link in seen.links:
            labels = [link.namespace, link.source, link.target]
            export("connected", labels, link.connected)
            export("backlog_messages", labels, link.backlog)
            export("lag_seconds", labels, link.delay_s)
        for cursor in seen.cursors:
            labels = [cursor.topic, cursor.subscription, cursor.cluster]
            export("cursor_snapshot_age_seconds", labels, cursor.age_s)
            export("cursor_snapshot_behind_seconds", labels, cursor.behind_s)
            export("cursor_waiting_seconds", labels, cursor.waiting_s)
            export("cursor_backlog_messages", labels, cursor.backlog)
        for one in seen.unknown:
            export("unknown_cursor_backlog_messages", [one.topic, one.subscription, one.cluster], one.backlog)
        yield from gauges.values()


def _gauge(name: str) -> GaugeMetricFamily:
    labels = _CURSOR if "_cursor_" in name else _CLUSTER if "_cluster_" in name else _LINK
    return GaugeMetricFamily(name, METRICS[name], labels=labels)


app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
    help="Plan, apply, verify and watch geo-replication.",
)
console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)

File = Annotated[
    Path | None,
    typer.Option(
        "--topology",
        envvar="WAYBILL_TOPOLOGY",
        help="The topology file with addresses. Default: that of the local stack in $WAYBILL_STACK or var/local.",
    ),
]
Token = Annotated[str | None, typer.Option(envvar="WAYBILL_ADMIN_TOKEN", help="Bearer token for the clusters.")]
Ca = Annotated[
    Path | None,
    typer.Option("--ca", envvar="WAYBILL_ADMIN_CA", help="PEM file of your certificate authority."),
]
Access = Annotated[
    Path | None,
    typer.Option(
        "--access",
        envvar="WAYBILL_ACCESS",
        help="TOML file with token_file and tls_ca. Default: operator-access.toml next to the topology.",
    ),
]
ACCESS_FILE = "operator-access.toml"
"""Next to a topology: the access to its clusters, as a local stack writes it."""
AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of a table.")]


@app.command()
def plan(
    topology: File = None, token: Token = None, ca: Ca = None, access: Access = None, as_json: AsJson = False
) -> None:
    """Print differences. Exit status: 0 none, 2 some, 1 an error, or a cluster did not answer.

    Example: waybill topology plan --topology topology.toml
    """
    with _opened(topology, token, ca, access) as (wanted, clients):
        seen = inspect_clusters(wanted, clients)
    _show_changes(seen.changes, as_json, "nothing to change" if not seen.unreachable else "")
    _print_unseen(seen)
    raise typer.Exit(_exit_status(seen.unreachable, seen.changes))


@app.command()
def apply(
    *,
    topology: File = None,
    token: Token = None,
    ca: Ca = None,
    access: Access = None,
    allow_delete: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SUBJECT", help="Also apply the change of this subject, although it deletes data; may be repeated."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Apply the topology to all reachable clusters. Exit status: 0 done, 2 some changes were not allowed, 1 an error.

    Example: waybill topology apply --topology topology.toml
    """
    made: list[Change] = []

    def note(change: Change) -> None:
        # Printed at once: an interrupted apply has named its changes.
        made.append(change)
        if not as_json:
            _show_changes([change], False, "")

    with _opened(topology, token, ca, access) as (wanted, clients):
        try:
            done = apply_topology(wanted, clients, allow_delete=allow_delete or (), on_change=note)
        except ReplicationError as stopped:
            if as_json:
                _json({"changed": [change.model_dump(mode="json") for change in made], "stopped": str(stopped)})
            raise
    if as_json:
        _json(done.model_dump(mode="json"))
    else:
        _print_applied(done)
    _print_unseen(done)
    raise typer.Exit(_exit_status(done.unreachable, done.held_back))


def _exit_status(unseen: Mapping[str, str], differs: Sequence[Change]) -> int:
    return 1 if unseen else 2 if differs else 0


def _print_applied(done: Applied) -> None:
    if not (done.changed or done.held_back or done.unreachable):
        console.print("nothing to change")
    for change in done.held_back:
        words = f"held back, it would delete data: {change}  (--allow-delete {shlex.quote(change.subject)})"
        console.print(words, style="yellow", markup=False, soft_wrap=True)


def _print_unseen(seen: Inspection | Applied) -> None:
    for line in seen.unprotected:
        errors.print(line, style="yellow", markup=False, soft_wrap=True)
    for cluster, reason in seen.unreachable.items():
        errors.print(f"{cluster} is left out: {reason}", style="red", markup=False, soft_wrap=True)


@app.command()
def verify(
    *,
    topology: File = None,
    token: Token = None,
    ca: Ca = None,
    access: Access = None,
    timeout_s: Annotated[float, typer.Option("--timeout", help="Timeout of a probe in seconds.", min=0.1)] = 15.0,
    as_json: AsJson = False,
) -> None:
    """Send a probe through every link.

    Exit status: 0 all links are good, 1 a link is bad or brokers do not enforce the topology's rights, 3 a cluster did
    not answer.

    Example: waybill topology verify --topology topology.toml
    """
    with _opened(topology, token, ca, access) as (wanted, clients):
        result = verify_links(wanted, clients, timeout_s=timeout_s)
    if as_json:
        _json(result.model_dump(mode="json"))
    else:
        console.print(links_table(result.links))
        for line in result.unprotected:
            console.print(line, style="red", markup=False, soft_wrap=True)
        good, answered = sum(link.is_good for link in result.links), len(wanted.clusters) - len(result.unreachable)
        console.print(
            f"{good} of {len(result.links)} links good; {answered} of {len(wanted.clusters)} clusters answered"
        )
    for warning in map(str, result.unknown):
        errors.print(f"warning: {warning}", style="yellow", markup=False, soft_wrap=True)
    for cluster, reason in result.unreachable.items():
        errors.print(f"unknown, {cluster} was not seen: {reason}", style="red", markup=False, soft_wrap=True)
    raise typer.Exit({True: 0, False: 1, None: 3}[result.is_good])


@app.command()
def watch(
    *,
    topology: File = None,
    token: Token = None,
    ca: Ca = None,
    access: Access = None,
    port: Annotated[int, typer.Option(help="Port of the metrics; 0: none.", min=0, max=65535)] = 9466,
    host: Annotated[str, typer.Option(help="Address of the metrics.")] = "127.0.0.1",
    interval_s: Annotated[float, typer.Option("--interval", help="Seconds between two measurements.", min=0.2)] = 5.0,
    looks: Annotated[int, typer.Option(help="Stop after this many measurements; 0: never.", min=0)] = 0,
) -> None:
    """Export replication lag, connections and the age of the last cursor snapshot as metrics.

    Example: waybill topology watch --topology topology.toml --port 9466
    """
    collector, done = ReplicationCollector(), 0
    with _opened(topology, token, ca, access) as (wanted, clients):
        if port:
            _serve(host, port, collector)
        while True:
            seen = observe(wanted, clients, time.time)
            collector.update(seen)
            console.print(summary(seen), markup=False)
            done += 1
            if done == looks:
                return
            time.sleep(interval_s)


@app.command("broker-conf")
def broker_conf(
    cluster: Annotated[str, typer.Argument(help="The cluster of the brokers.")],
    *,
    issuer: Annotated[str, typer.Option(envvar="WAYBILL_TOKEN_ISSUER", help="The URL that serves the keys of tokens.")],
    tls: Annotated[Path, typer.Option(help="Folder of ca.pem, certificate.pem and key.pem on the brokers' machines.")],
    token_file: Annotated[Path, typer.Option(help="File of the token of the brokers' role on these machines.")],
    topology: File = None,
) -> None:
    """Print lines for Pulsar's broker.conf (TLS, tokens, rights). Append them: the last value of a name applies.

    Example: waybill topology broker-conf eu --issuer https://keys.example --tls /etc/pulsar/tls
    --token-file /etc/pulsar/broker.token
    """
    with _errors_as_messages(topology):
        lines = broker_conf_lines(load(Topology, _file(topology)), cluster, issuer, tls, token_file)
    print(*lines, sep="\n")  # noqa: T201


@app.command("chart-values")
def values_of_chart(
    cluster: Annotated[str, typer.Argument(help="The cluster of the brokers.")],
    *,
    issuer: Annotated[str, typer.Option(envvar="WAYBILL_TOKEN_ISSUER", help="The URL that serves the keys of tokens.")],
    credentials: Annotated[str, typer.Option(help="The Secret with broker.token.")] = "waybill-pulsar",
    ca: Annotated[
        str, typer.Option(help="cert-manager's Issuer; the Secret NAME-ca has its ca.crt.")
    ] = "waybill-pulsar",
    bookies: Annotated[int, typer.Option(min=3, help="Servers that store messages; three copies are kept.")] = 3,
    offload_bucket: Annotated[str, typer.Option(help="An S3 bucket for older messages.")] = "",
    offload_region: Annotated[str, typer.Option(help="Its region.")] = "",
    offload_secret: Annotated[str, typer.Option(help="The Secret with its keys.")] = "",
    offload_above_mb: Annotated[int, typer.Option(min=0, help="What of each topic stays on bookies.")] = 1024,
    topology: File = None,
) -> None:
    """Print values for Apache's Helm chart of Pulsar: TLS, tokens, rights, snapshots, volumes, zones.

    Example: waybill topology chart-values eu --issuer https://keys.example > pulsar-eu.yaml
    """
    with _errors_as_messages(topology):
        options = ChartOptions(
            issuer=issuer,
            credentials=credentials,
            ca=ca,
            bookies=bookies,
            offload_bucket=offload_bucket,
            offload_region=offload_region,
            offload_secret=offload_secret,
            offload_above_mb=offload_above_mb,
        )
        text = as_yaml(chart_values(load(Topology, _file(topology)), cluster, options))
    print(text, end="")  # noqa: T201


@app.command()
def addresses(
    *,
    domain: Annotated[str, typer.Option(help="The Kubernetes cluster's domain.")] = "cluster.local",
    trust_file: Annotated[str, typer.Option(help="The authority of certificates, in the brokers' pods.")] = TRUST_FILE,
    topology: File = None,
) -> None:
    """Print addresses for the topology's clusters that have none, from Services on standard input.

    The input is the output of `kubectl get services -A -o json`.

    Example: waybill topology addresses --topology topology.toml < services.json
    """
    with _errors_as_messages(topology):
        text = addresses_of(sys.stdin.read(), load(Topology, _file(topology)), domain, trust_file)
    print(text, end="")  # noqa: T201


def _serve(host: str, port: int, collector: ReplicationCollector) -> None:
    try:
        registry = collector.registry()
        StatusServer(host, port, {"/metrics": lambda: metrics_answer(registry)})
    except OSError as error:
        said = "is taken" if error.errno == errno.EADDRINUSE else f"cannot be used: {error}"
        way_out = f"port {port} {said}; choose another with --port, or none with --port 0"
        errors.print(way_out, style="red", soft_wrap=True)
        raise typer.Exit(1) from error


def _file(topology: Path | None) -> Path:
    return topology or stack_file("topology.toml")


def _access(topology: Path, token: str | None, ca: Path | None, named: Path | None) -> PulsarAccess:
    """The access named on the command line, else the one next to the topology."""
    file = named or topology.with_name(ACCESS_FILE)
    found = load(PulsarAccess, file) if named or (file.exists() and not token and not ca) else PulsarAccess()
    change = {"token": SecretStr(token), "token_file": None} if token else {}
    return found.model_copy(update=change | ({"tls_ca": ca} if ca else {}))


@contextmanager
def _opened(
    topology: Path | None, token: str | None, ca: Path | None, access: Path | None
) -> Iterator[tuple[Topology, dict[str, AdminClient]]]:
    file = _file(topology)
    with _errors_as_messages(topology):
        wanted = load(Topology, file)
        with admins(wanted, _access(file, token, ca, access)) as clients:
            yield wanted, clients


@contextmanager
def _errors_as_messages(topology: Path | None) -> Iterator[None]:
    try:
        yield
    except (ReplicationError, SettingsError) as error:
        errors.print(str(error), style="red", markup=False, soft_wrap=True)
        if topology is None and not _file(topology).exists():
            remedy = f"{stack_advice('--topology or $WAYBILL_TOPOLOGY')}; or start a stack: waybill up"
            errors.print(remedy, soft_wrap=True)
        raise typer.Exit(os.EX_CONFIG if isinstance(error, SettingsError) else 1) from error


def _show_changes(changes: Sequence[Change], as_json: bool, none: str) -> None:
    if as_json:
        _json([change.model_dump(mode="json") for change in changes])
        return
    for change in changes:
        danger = f"  (deletes data: {change.subject})" if change.deletes_data else ""
        console.print(f"{change}{danger}", markup=False, style="yellow" if danger else None, soft_wrap=True)
    if not changes and none:
        console.print(none)


def _json(value: object) -> None:
    print(json.dumps(value, indent=2, sort_keys=True))  # noqa: T201


if __name__ == "__main__":
    app()
