"""What the commands print: tables for people, JSON for programs."""

from decimal import Decimal
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from simulator.publisher import Summary
from simulator.replay import Recording
from simulator.scenario import Scenario
from simulator.truth import TrueBill, Truth
from simulator.truth.money import exponent

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
    """The truth for programs: counts by device and kind, usage rows and bills; quantities are text."""
    return {
        "records": {device: _counts(truth, device) for device in truth.devices},
        "usage": [{**row._asdict(), "quarter": row.quarter.isoformat()} for row in truth.usage()],
        "bills": {account: _bill_json(truth.bill(account)) for account in truth.accounts},
    }


def truth_tables(truth: Truth) -> RenderableType:
    """The truth for people."""
    return Group(_records_table(truth), *(_bill_table(truth.bill(account)) for account in truth.accounts))


def _counts(truth: Truth, device: str) -> dict[str, int]:
    records = truth.records(device)
    counts = {kind: sum(count for made, count in records.items() if made.kind == kind) for kind in KINDS}
    return {**counts, "all": records.total()}


def _bill_json(bill: TrueBill) -> dict[str, Any]:
    lines = [
        {**line._asdict(), "quantity": str(line.quantity), "unit_amount": str(line.unit_amount)} for line in bill.lines
    ]
    return {"account": bill.account, "currency": bill.currency, "total_minor": bill.total_minor, "lines": lines}


def _records_table(truth: Truth) -> Table:
    table = Table(title="Records that exist")
    table.add_column("vehicle")
    for kind in (*KINDS, "all"):
        table.add_column(kind, justify="right")
    for device in truth.devices:
        table.add_row(device, *(f"{count:,}" for count in _counts(truth, device).values()))
    return table


def _bill_table(bill: TrueBill) -> Table:
    table = Table(title=f"{bill.account} owes {money(bill.total_minor, bill.currency)}")
    for heading, justify in (("vehicle", "left"), ("meter", "left"), ("zone", "left"), ("quantity", "right")):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    table.add_column("at", justify="right")
    table.add_column("amount", justify="right")
    for line in bill.lines:
        amount = money(line.amount_minor, bill.currency)
        quantity = f"{line.quantity:,.6f}".rstrip("0").rstrip(".")
        table.add_row(line.device, line.meter, line.zone or "(outside)", quantity, str(line.unit_amount), amount)
    return table


def money(amount_minor: int, currency: str) -> str:
    """An amount in minor units as people write it."""
    decimals = exponent(currency)
    return f"{Decimal(amount_minor).scaleb(-decimals):,.{decimals}f} {currency}"
