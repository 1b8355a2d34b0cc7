"""Tables for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

_APART = {
    "classes",
    "counters",
    "malformed",
    "device",
    "epoch",
    "head",
    "gap_ranges",
    "tombstones",
    "held_back",
    "running",
}
_IDS = {"epoch", "first", "last"}
_INTERNAL = ("wire_", "sending", "sent_through", "downsampled_through_", "age_clock_s", "flash_day")
"""Stored values that are no counters, or stand in the table under another name."""


def print_status(state: dict[str, Any]) -> None:
    """The state of the buffer, and of the running agent where it answers."""
    console = Console()
    runs = {True: "running", False: "not running"}.get(state["running"], "running: unknown")
    console.print(f"[bold]{state['device']}[/bold]  {runs}  epoch {state['epoch']}  head {state['head']}")
    if state["running"] and "uptime_s" not in state:
        console.print("the agent's endpoint does not answer: connections and counters are unknown")
    held = state.get("held_back", {})
    table = _table("class", "batches", "records", "bytes", "held back by")
    for name, one in state["classes"].items():
        table.add_row(name, f"{one['batches']:,}", f"{one['records']:,}", f"{one['bytes']:,}", held.get(name, ""))
    console.print(table)
    rest = _table("what", "value")
    counters = {key: value for key, value in state["counters"].items() if not key.startswith(_INTERNAL)}
    for key, value in {**dict(_rates(state)), **counters, **state.get("malformed", {}), **state}.items():
        if key not in _APART and value is not None:
            rest.add_row(key.replace("_", " "), _shown(value))
    console.print(rest)
    ranges = [*((*one, "GAP") for one in state["gap_ranges"]), *state["tombstones"]]
    if ranges:
        lost = _table("why", "first", "last")
        for first, last, reason in ranges:
            lost.add_row(reason, str(first), str(last))
        console.print(lost)


def print_batches(rows: Sequence[dict[str, Any]]) -> None:
    """The batches that wait."""
    if not rows:
        Console().print("nothing waits")
        return
    _print_rows(rows)


def print_dead_letters(rows: Sequence[dict[str, Any]]) -> None:
    """The messages that no record could carry; nothing where there are none."""
    if rows:
        Console().print("dead letters")
        _print_rows(rows)


def _print_rows(rows: Sequence[dict[str, Any]]) -> None:
    table = _table(*rows[0])
    for row in rows:
        table.add_row(*(str(value) if key in _IDS else _shown(value) for key, value in row.items()))
    Console().print(table)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else escape(str(value))


def _rates(state: dict[str, Any]) -> list[tuple[str, Any]]:
    uptime_s = state.get("uptime_s")
    if not uptime_s:
        return []
    return [
        ("messages_a_second", round(state["messages"] / uptime_s, 1)),
        ("records_sent_a_second", round(state["records_sent"] / uptime_s, 1)),
    ]


def _table(*columns: str) -> Table:
    table = Table()
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    return table
