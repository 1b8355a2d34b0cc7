"""How links, rights and observations look on a terminal."""

from collections.abc import Sequence

from rich.table import Table

from geo.replication.link_probe import VerifyResult
from geo.replication.model import Topology
from geo.replication.observe import LinkState, Observation

__all__ = ["compared", "links_table", "summary"]


def compared(wanted: Topology, result: VerifyResult) -> str:
    """How many links and rights are as they should be, and how many clusters answered."""
    answered = len(wanted.clusters) - len(result.unreachable)
    good = sum(link.is_good for link in result.links)
    links = f"{good} of {len(result.links)} links good" if result.links else "no link: no namespace is on two clusters"
    if result.rights:
        refused = sum(right.is_good and not right.may for right in result.rights)
        kept = sum(right.is_good for right in result.rights)
        links += f"; {kept} of {len(result.rights)} rights as they should be, {refused} of them refusals"
    return f"{links}; {answered} of {len(wanted.clusters)} clusters answered"


def links_table(links: Sequence[LinkState]) -> Table:
    """One row for each link: whether it is connected, what waits, how long a probe took, what is wrong."""
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
    """What was observed at one moment, in a line."""
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
