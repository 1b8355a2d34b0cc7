"""Tables for people."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
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
    "meant_members",
    "not_recorded",
    "unknown_members",
    "unusable_members",
    "unreadable",
    "enrolment",
    "certificate_ends_s",
    "device",
    "epoch",
    "head",
    "gap_ranges",
    "kept_buffers",
    "tombstones",
    "held_back",
    "running",
}
_INTERNAL = ("wire_", "sending", "sent_through", "downsampled_through_", "age_clock_s", "flash_day")
"""Stored values that are no counters, or stand in the table under another name."""


def print_status(state: dict[str, Any]) -> None:
    """The state of the buffer, and of the running agent where it answers."""
    console = Console()
    runs = {True: "running", False: "not running"}.get(state["running"], "running: unknown")
    console.print(f"[bold]{state['device']}[/bold]  {runs}  epoch {state['epoch']}  head {state['head']}")
    if state["running"] and "uptime_s" not in state:
        console.print("the agent's endpoint does not answer: connections and counters are unknown")
    _print_unreadable(console, state.get("unreadable", []))
    for name, member in state.get("meant_members", {}).items():
        console.print(f"`{escape(name)}` of messages is ignored: did you mean `{member}`?", highlight=False)
    held = state.get("held_back", {})
    table = _table("class", "batches", "records", "bytes", "held back by")
    for name, one in state["classes"].items():
        table.add_row(name, f"{one['batches']:,}", f"{one['records']:,}", f"{one['bytes']:,}", held.get(name, ""))
    console.print(table)
    rest = _table("what", "value")
    counters = {key: value for key, value in state["counters"].items() if not key.startswith(_INTERNAL)}
    for key, value in {**dict(_rates(state)), **counters, **_left_out(state), **state}.items():
        if key not in _APART and value is not None:
            rest.add_row(key.replace("_", " "), _shown(value))
    console.print(rest)
    if state["kept_buffers"]:
        others = _table("kept: not sent", "of", "records")
        for one in state["kept_buffers"]:
            others.add_row(one["file"], one["owner"] or "unreadable", _shown(one["records"]))
        console.print(others)
    ranges = [*((*one, "GAP") for one in state["gap_ranges"]), *state["tombstones"]]
    if ranges:
        lost = _table("why", "first", "last")
        for first, last, reason in ranges:
            lost.add_row(reason, str(first), str(last))
        console.print(lost)


def _print_unreadable(console: Console, kinds: Sequence[dict[str, Any]]) -> None:
    if not kinds:
        return
    table = _table("unreadable: raw, in no bill", "why", "messages", "looks like", "the last begins")
    for kind in kinds:
        texts = (escape(kind[name]) for name in ("looks_like", "sample"))
        table.add_row(escape(kind["topic"]), kind["reason"], f"{kind['messages']:,}", *texts)
    console.print(table)


def _left_out(state: dict[str, Any]) -> dict[str, str]:
    """Members and messages that no record has, by name, of a running agent."""
    found = {name: state.get(name) or {} for name in ("unknown_members", "unusable_members", "not_recorded")}
    return {
        f"{name} (each)": ", ".join(f"{one} {count:,}" for one, count in counts.items())
        for name, counts in found.items()
        if counts
    }


def print_batches(batches: Sequence[dict[str, Any]]) -> None:
    """The batches that wait: a table for each epoch, and why those that are not sent are not."""
    console = Console()
    if not batches:
        console.print("nothing waits")
    for epoch, rows in groupby(batches, key=itemgetter("epoch")):
        console.print(f"epoch {epoch}")
        table = _table("seqs", "class", "records", "lost", "bytes", "committed")
        for row in rows:
            numbers = (f"{row[key]:,}" for key in ("records", "lost", "bytes"))
            table.add_row(_seqs(row), row["class"], *numbers, _short_time(row["committed"]))
        console.print(table)
    refused = [row for row in batches if row["dead_letter"]]
    if refused:
        table = _table("dead letter", "reason")
        for row in refused:
            table.add_row(_seqs(row), escape(row["dead_letter"]))
        console.print(table)


def print_dead_letters(messages: Sequence[dict[str, Any]]) -> None:
    """The messages that no record could carry; nothing where there are none."""
    if not messages:
        return
    table = _table("dead letter came", "bytes", "reason", "topic and beginning")
    for row in messages:
        table.add_row(
            _short_time(row["came"]), f"{row['bytes']:,}", row["reason"], escape(f"{row['topic']} {row['begins']}")
        )
    Console().print(table)


def _seqs(row: dict[str, Any]) -> str:
    return f"{row['first']}-{row['last']}"


def _short_time(moment: str) -> str:
    """Without the offset, which is UTC for all of them."""
    return moment.removesuffix("+00:00").replace("T", " ")


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
        # Folded: a number that is cut off is another number. A reason is looked for in the documentation, whole.
        is_whole = column == "why"
        table.add_column(column, justify="left" if number == 0 else "right", overflow="fold", no_wrap=is_whole)
    return table
