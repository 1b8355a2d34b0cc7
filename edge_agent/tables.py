"""Tables for people."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table


def print_status(state: dict[str, Any]) -> None:
    """The state of the buffer as a table."""
    console = Console()
    table = Table(title=f"{state['device']} · epoch {state['epoch']} · head {state['head']}")
    for column in ("class", "batches", "records", "bytes"):
        table.add_column(column, justify="left" if column == "class" else "right")
    for name, one in state["classes"].items():
        table.add_row(name, f"{one['batches']:,}", f"{one['records']:,}", f"{one['bytes']:,}")
    console.print(table)
    rest = Table(show_header=False)
    for key, value in state.items():
        if key not in {"classes", "tallies", "device", "epoch", "head"} and value is not None:
            rest.add_row(key.replace("_", " "), f"{value:,}" if isinstance(value, int) else str(value))
    console.print(rest)
