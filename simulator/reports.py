"""What the commands print: tables for people, JSON for programs."""

from decimal import Decimal
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from simulator.publisher import Summary
from simulator.replay import Recording
from simulator.scenario import Scenario
from simulator.truth import TrueOwed, Truth
from simulator.truth.contracts import exponent

KINDS = ("position", "signal", "event", "canary", "raw")


def scenario_table(scenario: Scenario, recording: Recording | None) -> RenderableType:
    """What a scenario holds."""
    table = Table(title="Scenario", show_header=False)
    hours = scenario.duration_s / 3600
    table.add_row("seed", str(scenario.seed))
    pace = "fixes as recorded" if scenario.track else f"a fix every {scenario.interval_s} s"
    table.add_row("drives", f"{scenario.start:%Y-%m-%d %H:%M:%S} UTC, {hours:.2f} h, {pace}")
    for region in scenario.regions:
        own = sum(vehicle.region == region.id for vehicle in scenario.vehicles)
        table.add_row(f"region {region.id}", f"{own} vehicles, {region.city}")
    for account in scenario.accounts:
        table.add_row(
            f"account {account.id}", f"{len(account.vehicles)} vehicles, {account.tariff} in {account.currency}"
        )
    table.add_row("zones", ", ".join(fence.id for fence in scenario.fences))
    faults = ", ".join(f"{name}={value}" for name, value in scenario.faults if value)
    if faults:
        table.add_row("faults", faults)
    if recording is not None:
        used = sum(len(fixes) for fixes in recording.fixes.values())
        table.add_row("recording", f"{used} of {recording.rows} rows of {len(recording.fixes)} vehicles are used")
        for reason, count in sorted(recording.left_out.items()):
            table.add_row("left out", f"{count} rows: {reason}")
    return table


def scenario_json(scenario: Scenario, recording: Recording | None, files: list[str]) -> dict[str, Any]:
    """What a scenario holds, for programs."""
    summary: dict[str, Any] = {
        "files": files,
        "vehicles": len(scenario.vehicles),
        "start": scenario.start.isoformat(),
        "duration_s": scenario.duration_s,
    }
    if recording is not None:
        summary["recording"] = {"rows": recording.rows, "left_out": dict(recording.left_out)}
    return summary


def summary_table(summary: Summary) -> RenderableType:
    """What was published."""
    table = Table(title="Published to the local brokers")
    table.add_column("vehicle")
    table.add_column("records", justify="right")
    for device, made in summary.by_device.items():
        table.add_row(device, f"{made:,}")
    table.add_section()
    for what, count in (
        ("made", summary.made),
        ("acknowledged", summary.acknowledged),
        ("refused at first: no subscriber", summary.refused_at_first),
        ("reconnects", summary.reconnects),
        ("maybe held twice", summary.maybe_doubled),
    ):
        table.add_row(what, f"{count:,}")
    table.add_row("seconds", f"{summary.seconds:.1f}")
    return table


def truth_json(truth: Truth) -> dict[str, Any]:
    """The truth for programs: counts by device and kind, usage rows and what each payer owes."""
    return {
        "records": {device: _counts(truth, device) for device in truth.devices},
        "usage": [{**row._asdict(), "quarter": row.quarter.isoformat()} for row in truth.usage()],
        "owed": {payer: _owed_json(truth.owed(payer)) for payer in truth.payers},
    }


def truth_tables(truth: Truth) -> RenderableType:
    """The truth for people."""
    return Group(_records_table(truth), *(_owed_table(truth.owed(payer)) for payer in truth.payers))


def _counts(truth: Truth, device: str) -> dict[str, int]:
    records = truth.records(device)
    counts = {kind: sum(count for made, count in records.items() if made.kind == kind) for kind in KINDS}
    return {**counts, "all": records.total()}


def _owed_json(owed: TrueOwed) -> dict[str, Any]:
    charges = [{**one.about._asdict(), **one._asdict()} for one in owed.charges]
    for charge in charges:
        del charge["about"]
    return {
        "currency": owed.currency,
        "net_minor": owed.net_minor,
        "gross_minor": owed.gross_minor,
        "charges": charges,
    }


def _records_table(truth: Truth) -> Table:
    table = Table(title="Records that exist")
    table.add_column("vehicle")
    for kind in (*KINDS, "all"):
        table.add_column(kind, justify="right")
    for device in truth.devices:
        table.add_row(device, *(f"{count:,}" for count in _counts(truth, device).values()))
    return table


def _owed_table(owed: TrueOwed) -> Table:
    table = Table(title=f"{owed.payer} owes {money(owed.gross_minor, owed.currency)} with tax")
    for heading in ("account", "vehicle", "for", "zone", "price"):
        table.add_column(heading)
    table.add_column("quantity", justify="right")
    table.add_column("amount", justify="right")
    for charge in owed.charges:
        about = charge.about
        what = about.meter if about.kind == "usage" else about.kind
        # "" is outside all zones of what is metered in zones, and nothing of the rest.
        words = (about.account, about.device, what, about.zone, about.price)
        table.add_row(*words, f"{charge.quantity:,}", money(charge.amount_minor, owed.currency))
    return table


def money(amount_minor: int, currency: str) -> str:
    """An amount in minor units as people write it."""
    decimals = exponent(currency)
    return f"{Decimal(amount_minor).scaleb(-decimals):,.{decimals}f} {currency}"
