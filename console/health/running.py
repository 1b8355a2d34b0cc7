"""The checks of what runs: replication links, daemons and canaries."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from cloud_jobs.errors import CloudError
from cloud_jobs.status.facts import Part
from console.health.bounded import WAIT_S, Answer
from console.health.canaries import HOPS, CanaryState
from console.health.centre import affects
from console.health.checks import BillStates, Check, LinkLag, Outcome, bills_kept
from geo.replication import AdminClient, Topology
from geo.replication.cluster_state import address as address_of_cluster
from geo.replication.verification import Observation, observe
from waybill.daemon.stack_daemons import ask_daemon
from waybill.daemon.stack_folder import Registration
from waybill.pulsar.pulsar_client import PulsarAccess
from waybill.settings import SettingsError, load, one_line

# Replication, by the topology file beside the settings.

TOPOLOGY: Final = "topology.toml"
_ACCESS: Final = "operator-access.toml"
_MAX_DELAY_S: Final = 60.0
"""As in the alert WaybillReplicationLag."""


def observe_links(folder: Path) -> Observation:
    """The state of every link, asked now. Raises CloudError for a faulty file, ReplicationError."""
    access = folder / _ACCESS
    try:
        topology = load(Topology, folder / TOPOLOGY)
        given = load(PulsarAccess, access) if access.exists() else PulsarAccess()
    except SettingsError as error:
        raise CloudError("; ".join(error.lines)) from error
    clients = dict[str, AdminClient]()
    try:
        for name in sorted(topology.clusters):
            url = address_of_cluster(topology, name).admin_url
            clients[name] = AdminClient(name, url, access=given, timeout_s=WAIT_S * 0.8, unavailable_s=0)
        return observe(topology, clients, lambda: datetime.now(UTC).timestamp())
    finally:
        for client in clients.values():
            client.close()


def link_lags(seen: Observation) -> tuple[LinkLag, ...]:
    """Each pair of clusters over all its namespaces; what one namespace does not know is unknown. Pure."""
    pairs: dict[tuple[str, str], list[Any]] = {}
    for one in seen.links:
        pairs.setdefault((one.source, one.target), []).append(one)
    found = []
    for (source, target), links in sorted(pairs.items()):
        problem = next((one.problem for one in links if one.problem), "")
        if source in seen.unreachable:
            found.append(LinkLag(source, target, None, None, None, one_line(f"{source} does not answer: {problem}")))
            continue
        backlogs, delays = [one.backlog for one in links], [one.delay_s for one in links]
        found.append(
            LinkLag(
                source,
                target,
                all(one.connected for one in links),
                None if None in backlogs else sum(backlogs),
                None if None in delays else max(delays),
                one_line(problem),
            )
        )
    return tuple(found)


def check_replication(answer: Answer[Observation], bills: Answer[BillStates]) -> tuple[Check, tuple[LinkLag, ...]]:
    links = () if answer.error else link_lags(answer.get())
    down = [one for one in links if one.connected is False]
    late = [one for one in links if one.delay_s is not None and one.delay_s > _MAX_DELAY_S]
    unknown = [one for one in links if one.connected is None or one.delay_s is None]
    outcome, section = Outcome.WRONG, "replication.md#WaybillLinkDown"
    if down:
        found = f"{', '.join(_names(down))}: not connected{f': {down[0].problem}' if down[0].problem else ''}"
    elif late:
        section = "replication.md#WaybillReplicationLag"
        found = f"{', '.join(_names(late))}: more than {_MAX_DELAY_S:.0f} s behind"
    elif unknown or not links:
        outcome, section = Outcome.UNKNOWN, "replication.md#WaybillClusterUnreachable"
        found = f"{', '.join(_names(unknown))}: {unknown[0].problem}" if unknown else "the topology has no link"
    else:
        return Check("replication", "Replication", Outcome.FINE, f"{len(links)} links are connected"), links
    affected = affects(Part.LINKS, None, bills) if outcome is Outcome.WRONG else None
    found, command = one_line(answer.error or found), "waybill topology verify"
    return Check("replication", "Replication", outcome, found, None, affected, section, command), links


def _names(links: Iterable[LinkLag]) -> list[str]:
    return [f"{one.source} to {one.target}" for one in links]


# Daemons and canaries.

_RUNBOOK_OF: Final = (
    ("fleet-gateway alerts", "alerts.md#WaybillAlertProcessUnhealthy"),
    ("fleet-gateway access", "access.md#WaybillAccessUnhealthy"),
    ("fleet-gateway", "gateway.md#WaybillGatewayUnhealthy"),
    ("waybill alerts", "webhooks.md#WaybillWebhooksUnhealthy"),
    ("waybill canary", "canary.md#WaybillCanarySilent"),
    ("edge-agent", "agent.md#WaybillAgentRecordsMissing"),
    ("cloud-jobs", "centre.md#WaybillJobStopped"),
    ("", "gateway.md#WaybillTargetDown"),
)
_AFFECTS_OF: Final = (
    ("fleet-gateway alerts", "live alerts of its region are late or missing; bills are not affected"),
    ("fleet-gateway access", "new and revoked devices of its region wait; known devices go on"),
    ("fleet-gateway", "records of its region wait in the vehicles' buffers; {bills}"),
    ("waybill alerts", "webhooks of live alerts are late or missing; bills are not affected"),
    ("waybill canary", "the hops that it watches are not known to work"),
    ("edge-agent", "records of its vehicle wait in its buffer; {bills}"),
)


def asking_daemon(one: Registration) -> Callable[[], Any]:
    return lambda: ask_daemon(one, WAIT_S * 0.8)


def check_registered(one: Registration, bills: Answer[BillStates], answer: Answer[Any]) -> Check:
    name = f"{one.program} {Path(one.config).name}"
    title, section = f"Daemon {name}", _first(_RUNBOOK_OF, one.program)
    key = f"daemon {name}"
    if answer.error:
        return Check(key, title, Outcome.UNKNOWN, answer.error, runbook=section)
    said = answer.get()
    if said.state == "healthy":
        return Check(key, title, Outcome.FINE, f"it says that it is healthy; process {said.pid}")
    found = one_line(f"{said.state}{said.problem and f': {said.problem}'}")
    if not said.is_wrong:
        return Check(key, title, Outcome.UNKNOWN, found, runbook=section, command=said.next)
    words = _first(_AFFECTS_OF, one.program)
    affected = words and words.format(bills=bills_kept(bills))
    return Check(key, title, Outcome.WRONG, found, None, affected, section, said.next)


def _first(pairs: Iterable[tuple[str, str]], program: str) -> Any:
    return next((text for begin, text in pairs if program.startswith(begin)), None)


def check_address(address: str, answer: Answer[Any]) -> Check:
    """A daemon that the settings of the console name."""
    key, title, section = f"daemon {address}", f"Daemon at {address}", "gateway.md#WaybillTargetDown"
    if answer.error or not isinstance(answer.value, dict):
        return Check(key, title, Outcome.UNKNOWN, one_line(answer.error or "no status"), runbook=section)
    healthy = answer.value.get("healthy")
    if healthy is True:
        return Check(key, title, Outcome.FINE, "it says that it is healthy")
    said = answer.value.get("last_error") or answer.value.get("problems") or ""
    found = one_line(f"{'not healthy' if healthy is False else 'it does not know'}{f': {said}' if said else ''}")
    return Check(key, title, Outcome.WRONG if healthy is False else Outcome.UNKNOWN, found, runbook=section)


def check_canary(one: CanaryState) -> Check:
    name = one.device or one.region
    key, title, command = f"canary {name}", f"Canary {name}", "waybill canary status"
    hops = [one.hop(hop) for hop in HOPS]
    red = [hop for hop in hops if hop.colour == "red"]
    if red:
        names = ", ".join(hop.hop for hop in red)
        affected = f"customers' vehicles of region {one.region} most likely fail at {names}, too"
        if any(hop.hop == "rated" for hop in red):
            affected += "; issue no invoice until the cause is known"
        found = one_line(f"{names}: {red[0].reason}")
        return Check(key, title, Outcome.WRONG, found, None, affected, "canary.md#WaybillCanaryRed", command)
    green = [hop for hop in hops if hop.colour == "green"]
    unknown = [hop for hop in hops if hop.colour == "unknown"]
    if one.problem or unknown or not green:
        found = one.problem or (f"{unknown[0].hop}: {unknown[0].reason}" if unknown else "it watches no hop")
        section = "canary.md#WaybillCanaryUnknown"
        return Check(key, title, Outcome.UNKNOWN, one_line(found), runbook=section, command=command)
    return Check(key, title, Outcome.FINE, f"{', '.join(hop.hop for hop in green)} are green")
