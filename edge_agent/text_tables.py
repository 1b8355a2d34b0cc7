"""The tables of `edge-agent status`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from edge_agent.config import AgentSettings
from edge_agent.intake.messages import MEMBERS
from waybill.daemon.status_reader import StatusUnavailable, fetch_status
from waybill.settings.text import name_advice, printable

# Requests to the running agent.

LIVE_TIMEOUT_S = 2.0


def fetch_current_state(settings: AgentSettings) -> dict[str, Any]:
    """The state of the running agent; empty if none answers, or an agent of another device does."""
    if settings.status.port == 0:
        return {}
    try:
        state = fetch_status("127.0.0.1", settings.status.port, "status", timeout_s=LIVE_TIMEOUT_S)
    except StatusUnavailable:
        return {}
    asked = (settings.device.tenant, settings.device.id)
    return state if (state.get("tenant"), state.get("device")) == asked else {}


_APART = {"certificate_ends_s", "device", "epoch", "head", "running"}
_INTERNAL = ("wire_", "sending", "sent_through")
"""Stored values that are no counters, or stand in the table under another name."""


def print_status(state: dict[str, Any]) -> None:
    console = Console()
    runs = {True: "running", False: "not running"}.get(state["running"], "running: unknown")
    console.print(f"[bold]{state['device']}[/bold]  {runs}  epoch {state['epoch']}  head {state['head']}")
    if state["running"] and "uptime_s" not in state:
        console.print("the agent's endpoint does not answer: connections and counters are unknown")
    _print_rows(console, state.get("unreadable", []))
    left_out = state.get("left_out_members", {}).items()
    _print_rows(console, [{"member left out": name, "times": count, "why": _advice(name)} for name, count in left_out])
    held = state.get("held_back", {})
    _print_rows(
        console, [{"class": name, **one, "held back by": held.get(name, "")} for name, one in state["classes"].items()]
    )
    counters = {key: value for key, value in state["counters"].items() if not key.startswith(_INTERNAL)}
    values = {key: value for key, value in {**counters, **state}.items() if key not in _APART}
    plain = {key: value for key, value in values.items() if isinstance(value, bool | int | float | str)}
    _print_rows(console, [{"what": key.replace("_", " "), "value": value} for key, value in plain.items()])


def _advice(member: str) -> str:
    if member in MEMBERS:
        return "its value cannot be used"
    return "not in the contract" + name_advice(member, MEMBERS)


def _print_rows(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    if rows:
        # Folded: a number that is cut off is another number.
        table = Table(*(Column(name, overflow="fold") for name in rows[0]))
        for row in rows:
            table.add_row(*map(_shown, row.values()))
        console.print(table)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else escape(printable(str(value)))
