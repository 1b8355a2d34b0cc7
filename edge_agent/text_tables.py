"""The tables of `edge-agent status`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Column, Table

from edge_agent.config import AgentSettings
from edge_agent.errors import StoreError
from edge_agent.inspection import is_running, read_status
from edge_agent.intake.messages import MEMBERS, SILENT_S
from edge_agent.vehicle_broker import ARRIVED_TOPIC, KEEPS, UNPROVEN, WAITED
from waybill.daemon.status_reader import StatusUnavailable, fetch_status
from waybill.settings.text import name_advice, printable

# The states of buffers, with those of the running agent.

LIVE_TIMEOUT_S = 2.0


def state_of(settings: AgentSettings) -> dict[str, Any]:
    """The state of a device's buffer, and of its agent if that answers. Raises StoreError."""
    return _state(settings, _fetch(settings))


def states_of(devices: Sequence[AgentSettings]) -> dict[str, dict[str, Any]]:
    """The state of each device by its id. One that cannot be read has `problem`."""
    live, states = _fetch(devices[0]), dict[str, dict[str, Any]]()
    for one in devices:
        device = one.device
        try:
            states[device.id] = _state(one, live)
        except StoreError as error:
            about = {"device": device.id, "tenant": device.tenant, "running": is_running(one)}
            states[device.id] = {**about, "problem": str(error)}
    return states


def _state(settings: AgentSettings, live: dict[str, Any]) -> dict[str, Any]:
    own = live.get("devices", {}).get(settings.device.id, live)
    is_own = (own.get("tenant"), own.get("device")) == (settings.device.tenant, settings.device.id)
    return {**read_status(settings), "running": is_running(settings), **(own if is_own else {})}


def _fetch(settings: AgentSettings) -> dict[str, Any]:
    """What an agent answers at the port of these settings; empty if none does."""
    if settings.status.port == 0:
        return {}
    try:
        return fetch_status("127.0.0.1", settings.status.port, "status", timeout_s=LIVE_TIMEOUT_S)
    except StatusUnavailable:
        return {}


def print_devices(states: Mapping[str, dict[str, Any]]) -> None:
    """Prints a row for each of several devices; `--device` shows one."""
    rows = [
        {
            "device": _headline(one),
            "buffered": one.get("depth_records", ""),
            "acknowledged": one.get("acknowledged", ""),
        }
        | {"not understood": sum(row["messages"] for row in one.get("unreadable", ()))}
        for one in states.values()
    ]
    _print_rows(Console(), rows)


def print_status(state: dict[str, Any]) -> None:
    """Prints what a person needs; `--json` has everything."""
    console = Console()
    console.print(f"[bold]{escape(printable(_headline(state)))}[/bold]", soft_wrap=True)
    not_understood = [
        {
            "messages": one["messages"],
            "topic": one["topic"],
            "why": f"{one['reason']}: {one['detail']}" if one["detail"] else one["reason"],
            "last one": one["sample"],
        }
        for one in state.get("unreadable", ())
    ]
    _print_rows(console, not_understood, title="Messages not understood")
    mapped = [
        {"mapping": one["mapping"], "messages": one["messages"], "records": one["records"], "refused": one["refused"]}
        | {"last refusal": one["last_refusal"], "its message": one["sample"]}
        for one in state.get("mappings", ())
    ]
    _print_rows(console, mapped, title="Mappings")
    left_out = state.get("left_out_members", {}).items()
    _print_rows(
        console,
        [{"times": count, "member": name, "why": _advice(name)} for name, count in left_out],
        title="Left out of messages",
    )
    _print_rows(console, [*_class_rows(state)])
    _print_rows(console, [{"": name, " ": text} for name, text in _facts(state).items() if text], show_header=False)


_LINKS = {
    "acknowledges": "connected to {region}",
    "not connected": "not connected to a region",
    "unknown": "connected to {region}, no acknowledgement yet",
    "silent": "connected to {region}, which does not acknowledge",
    "no gateway": "connected to {region}, where no gateway runs",
    "taken over": "another client uses this device's id",
}


def _headline(state: dict[str, Any]) -> str:
    device = f"{state['tenant']}/{state['device']}"
    if state.get("problem"):
        return f"{device}: {state['problem']}"
    if not state["running"]:
        return f"{device}: not running" if state["running"] is False else f"{device}: running or not is unknown"
    if "uplink" not in state:
        return f"{device}: running; its status port does not answer, so connections and counters are unknown"
    link = _LINKS.get(state["uplink"], state["uplink"]).format(region=state.get("region"))
    return f"{device}: running for {_duration(state['uptime_s'])}; {link}"


def _class_rows(state: dict[str, Any]) -> Iterator[dict[str, Any]]:
    sent, held = state.get("sent_by_class"), state.get("held_back", {})
    for name, one in state["classes"].items():
        row = {"class": name, "buffered": one["records"], "size": decimal(one["bytes"]) if one["bytes"] else ""}
        row["oldest"] = "" if one["oldest_age_s"] is None else _duration(one["oldest_age_s"])
        if sent is not None:
            row["sent"] = sent[name]
        if held:
            row["held back by"] = held.get(name, "")
        yield row


def _facts(state: dict[str, Any]) -> dict[str, str]:
    """The values in words, by name; "" for what is not worth a row."""
    counters = state["counters"]
    lost = {key.removeprefix("lost_"): value for key, value in counters.items() if key.startswith("lost_") and value}
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in lost.items())
    ends, refused = state.get("certificate_ends"), state.get("reloads_refused")
    certificate = f"{state.get('certificate', '')}{f', ends {ends}' if ends else ''}"
    pushed = state.get("pushed_settings")
    paused_s = state.get("paused_for_s")
    return {
        "link problem": state.get("uplink_problem") or "",
        "pause": f"asked for by the gateway, {_duration(paused_s)} left" if paused_s else "",
        "vehicle's broker": _vehicle_broker(state),
        "arrival times": _ARRIVALS.get(state.get("arrivals", ""), ""),
        "mappings without records": _silent_mappings(state),
        "certificate": state.get("certificate_problem") or certificate,
        "acknowledged": f"{state['acknowledged']:,} records",
        "refused": f"{state['retrying']:,} batches, tried again" if state.get("retrying") else "",
        "dead letters": f"{state['dead_letter_records']:,} records" if state["dead_letter_records"] else "",
        "declared lost": f"{sum(lost.values()):,} records: {reasons}" if lost else "",
        "missing": f"{state['gaps']:,} records, neither waiting nor acknowledged nor lost" if state["gaps"] else "",
        "data": _data_used(state),
        "pushed settings": "" if pushed == "none" else pushed or "",
        "refused reloads": f"{refused:,}, see the log" if refused else "",
        "buffer": f"epoch {state['epoch']}, last number {state['head']:,}",
    }


_ARRIVALS: Final = {
    WAITED: "messages may have waited at the vehicle's broker; those without a time of their own stay raw",
    UNPROVEN: (
        "the agent's marker is refused or does not come back, so messages without a time of their own stay raw: let the"
        f" agent's user publish and read {ARRIVED_TOPIC}/# at the vehicle's broker"
    ),
}


def _silent_mappings(state: dict[str, Any]) -> str:
    silent = [(one["mapping"], one["silent_s"]) for one in state.get("mappings", ()) if one["silent_s"] >= SILENT_S]
    names = ", ".join(f"{name} ({_duration(silent_s)})" for name, silent_s in silent)
    return f"{names}: see the last refusal, and `edge-agent map listen`" if names else ""


def _vehicle_broker(state: dict[str, Any]) -> str:
    if "local_broker" not in state:
        return ""
    kept = {KEEPS: "keeps messages for the agent"}.get(state["vehicle_broker"], state["vehicle_broker"])
    dropped = state["vehicle_broker_dropped"]
    connected = "connected" if state["local_broker"] else "not connected"
    return f"{connected}, {kept}" + (f", {dropped:,} messages dropped" if dropped else "")


def _data_used(state: dict[str, Any]) -> str:
    if "wire_bytes_today" not in state:
        return ""
    over = f" over {state['link']}" if state["link"] else ""
    return f"{decimal(state['wire_bytes_today'])} today, {decimal(state['wire_bytes_this_month'])} this month{over}"


def _duration(seconds: float) -> str:
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _advice(member: str) -> str:
    if member in MEMBERS:
        return "its value cannot be used"
    return "not in the contract" + name_advice(member, MEMBERS)


def _print_rows(
    console: Console, rows: Sequence[Mapping[str, Any]], *, title: str = "", show_header: bool = True
) -> None:
    if rows:
        # Folded: a number that is cut off is another number.
        columns = [
            Column(name, overflow="fold", justify="right" if isinstance(value, int) else "left")
            for name, value in rows[0].items()
        ]
        table = Table(*columns, title=title, title_justify="left", show_header=show_header)
        for row in rows:
            table.add_row(*map(_shown, row.values()))
        console.print(table)


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else escape(printable(str(value)))
