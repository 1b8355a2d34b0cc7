"""Tables for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from edge_agent.config import AgentSettings
from waybill.daemon.status_reader import StatusUnavailable, fetch_status

# Requests to the running agent.

LIVE_TIMEOUT_S = 2.0


def fetch_current_state(settings: AgentSettings) -> dict[str, Any]:
    """The state of the running agent, if it has an endpoint and is the one that answers; else nothing."""
    if settings.status.port == 0:
        return {}
    try:
        state = fetch_status("127.0.0.1", settings.status.port, "status", timeout_s=LIVE_TIMEOUT_S)
    except StatusUnavailable:
        return {}
    asked = (settings.device.tenant, settings.device.id)
    return state if (state.get("tenant"), state.get("device")) == asked else {}


_APART = {
    "classes",
    "counters",
    "malformed",
    "left_out_members",
    "unreadable",
    "enrolment",
    "certificate_ends_s",
    "device",
    "epoch",
    "head",
    "held_back",
    "running",
}
_INTERNAL = ("wire_", "sending", "sent_through")
"""Stored values that are no counters, or stand in the table under another name."""


def print_status(state: dict[str, Any]) -> None:
    """The state of the buffer, and of the running agent where it answers."""
    console = Console()
    runs = {True: "running", False: "not running"}.get(state["running"], "running: unknown")
    console.print(f"[bold]{state['device']}[/bold]  {runs}  epoch {state['epoch']}  head {state['head']}")
    if state["running"] and "uptime_s" not in state:
        console.print("the agent's endpoint does not answer: connections and counters are unknown")
    _print_unreadable(console, state.get("unreadable", []))
    held = state.get("held_back", {})
    table = _table("class", "batches", "records", "bytes", "held back by")
    for name, one in state["classes"].items():
        table.add_row(name, f"{one['batches']:,}", f"{one['records']:,}", f"{one['bytes']:,}", held.get(name, ""))
    console.print(table)
    rest = _table("what", "value")
    counters = {key: value for key, value in state["counters"].items() if not key.startswith(_INTERNAL)}
    for key, value in {**counters, **state}.items():
        if key not in _APART and value is not None:
            rest.add_row(key.replace("_", " "), _shown(value))
    console.print(rest)


def _print_unreadable(console: Console, kinds: Sequence[dict[str, Any]]) -> None:
    if not kinds:
        return
    table = _table("unreadable: raw, in no bill", "why", "messages", "detail", "the last begins")
    for kind in kinds:
        texts = (escape(kind[name]) for name in ("detail", "sample"))
        table.add_row(escape(kind["topic"]), kind["reason"], f"{kind['messages']:,}", *texts)
    console.print(table)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else escape(str(value))


def _table(*columns: str) -> Table:
    table = Table()
    for number, column in enumerate(columns):
        # Folded: a number that is cut off is another number. A reason is looked for in the documentation, whole.
        is_whole = column == "why"
        table.add_column(column, justify="left" if number == 0 else "right", overflow="fold", no_wrap=is_whole)
    return table
