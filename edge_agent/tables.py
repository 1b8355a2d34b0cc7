"""Tables for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

_APART = {"classes", "tallies", "odd", "device", "epoch", "head", "gap_ranges", "tombstones"}


def print_status(state: dict[str, Any]) -> None:
    """The state of the buffer, and of the running agent where it answers."""
    console = Console()
    console.print(f"[bold]{state['device']}[/bold]  epoch {state['epoch']}  head {state['head']:,}")
    table = _table("class", "batches", "records", "bytes")
    for name, one in state["classes"].items():
        table.add_row(name, f"{one['batches']:,}", f"{one['records']:,}", f"{one['bytes']:,}")
    console.print(table)
    rest = _table("what", "value")
    for key, value in [*_rates(state), *state.items(), *state["tallies"].items(), *state.get("odd", {}).items()]:
        if key not in _APART and value is not None:
            rest.add_row(key.replace("_", " "), f"{value:,}" if isinstance(value, int) else str(value))
    console.print(rest)
    ranges = [*((*one, "GAP") for one in state["gap_ranges"]), *state["tombstones"]]
    if ranges:
        lost = _table("why", "first", "last")
        for first, last, reason in ranges:
            lost.add_row(reason, f"{first:,}", f"{last:,}")
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
        table.add_row(*(f"{value:,}" if isinstance(value, int) else escape(str(value)) for value in row.values()))
    Console().print(table)


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
