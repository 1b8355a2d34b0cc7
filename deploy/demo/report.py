"""The demo's findings as tables for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.table import Table
from rich.text import Text

from cloud_jobs.billing.currency import amount_text
from cloud_jobs.billing.meters import MEASURE_OF, quantity_text
from cloud_jobs.lake.coverage import Completeness
from deploy.demo.audit import Audit, BillAudit, DeviceAudit

_NUMBERS = ("made", "stored", "forwarded", "ingested", "lost", "unexpected")


def records_table(audit: Audit) -> Table:
    """How many records there were at each station, for each region and in all."""
    table = _table("Records, from the vehicle to the table", "region", *_NUMBERS, "equal to the truth")
    regions = sorted({device.region for device in audit.devices})
    for region in regions:
        mine = [device for device in audit.devices if device.region == region]
        table.add_row(region, *_sums(mine), _verdict(all(device.equal for device in mine)))
    table.add_section()
    table.add_row("all", *_sums(audit.devices), _verdict(all(device.equal for device in audit.devices)))
    redelivered = sum(device.redelivered for device in audit.devices)
    table.caption = (
        f"duplicates removed: {redelivered:,} redelivered by the vehicles' own brokers, "
        f"{audit.duplicates_removed:,} at the centre; in conflict: {audit.conflicts}; malformed: {audit.malformed}"
    )
    return table


def completeness_table(audit: Audit) -> Table:
    """The certificate of each device."""
    table = _table(
        "Completeness of each device", "device", "made", "received", "declared lost", "missing", "state", "equal"
    )
    for device in audit.devices:
        numbers = (f"{value:,}" for value in (device.made, device.received, device.declared, device.missing))
        table.add_row(device.device, *numbers, device.state, _verdict(device.equal))
    return table


def bill_table(audit: BillAudit) -> Table:
    """One account's consolidated bill: its lines added up by region, meter and zone, with the truth's total."""
    bill = audit.bill
    table = _table(
        f"{bill.account.name}: one bill for {bill.period} ({bill.status.value})",
        *("region", "meter", "zone", "vehicles", "quantity", "unit", "amount"),
    )
    for (region, meter, zone), lines in _grouped(bill.lines).items():
        quantity = quantity_text(meter, sum(line.quantity for line in lines))
        amount = amount_text(sum(line.amount_minor for line in lines), bill.currency)
        table.add_row(
            region,
            meter.value,
            zone or "outside",
            str(len({line.key.device for line in lines})),
            quantity,
            MEASURE_OF[meter].unit,
            amount,
        )
    table.add_section()
    for words, minor in (("total", bill.total_minor), ("the truth says", audit.truth.total_minor)):
        table.add_row(words, "", "", "", "", bill.currency, amount_text(minor, bill.currency))
    table.caption = f"{len(bill.lines)} lines, {audit.differing_lines} of them other than the truth's"
    return table


def verdict_table(audit: Audit) -> Table:
    """Each statement, and whether it holds."""
    table = _table("Against the independent truth", "what", "found", "holds")
    devices, bills = audit.devices, audit.bills
    rows: list[tuple[str, str, bool]] = [
        (
            "no record lost",
            f"{sum(device.lost for device in devices)} lost",
            all(not device.lost for device in devices),
        ),
        (
            "no record counted twice",
            f"{sum(device.unexpected for device in devices)} too many",
            all(not device.unexpected for device in devices),
        ),
        (
            "every device complete",
            f"{sum(device.state is Completeness.COMPLETE for device in devices)} of {len(devices)}",
            all(device.state is Completeness.COMPLETE for device in devices),
        ),
        ("nothing in quarantine", f"{audit.conflicts + audit.malformed}", not audit.conflicts + audit.malformed),
        (
            "usage equal in every hour and zone",
            f"{audit.usage_rows:,} rows, {audit.usage_differing} differ",
            not audit.usage_differing,
        ),
    ]
    rows += [
        (
            f"bill of {found.bill.account.id} equal to the last minor unit",
            f"{amount_text(found.bill.total_minor, found.bill.currency)} {found.bill.currency}",
            found.equal,
        )
        for found in bills
    ]
    for what, figure, holds in rows:
        table.add_row(what, figure, _verdict(holds))
    return table


def as_json(audit: Audit) -> dict[str, Any]:
    """The findings for programs."""
    return {
        "equal": audit.equal,
        "records": {name: sum(getattr(one, name) for one in audit.devices) for name in _NUMBERS},
        "redelivered": sum(one.redelivered for one in audit.devices),
        "duplicates_removed": audit.duplicates_removed,
        "conflicts": audit.conflicts,
        "malformed": audit.malformed,
        "devices": {one.device: {"state": one.state, "equal": one.equal} for one in audit.devices},
        "usage": {"rows": audit.usage_rows, "differing": audit.usage_differing},
        "bills": {
            one.bill.account.id: {
                "currency": one.bill.currency,
                "total_minor": one.bill.total_minor,
                "truth_minor": one.truth.total_minor,
                "lines": len(one.bill.lines),
                "differing_lines": one.differing_lines,
            }
            for one in audit.bills
        },
    }


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", caption_justify="left")
    words = {"region", "device", "state", "meter", "zone", "unit", "what", "found"}
    for column in columns:
        table.add_column(column, justify="left" if column in words else "right", no_wrap=column != "found")
    return table


def _sums(devices: Iterable[DeviceAudit]) -> list[str]:
    devices = list(devices)
    return [f"{sum(getattr(one, name) for one in devices):,}" for name in _NUMBERS]


def _verdict(holds: bool) -> Text:
    return Text("yes", style="green") if holds else Text("NO", style="bold red")


def _grouped(lines: Iterable[Any]) -> dict[Any, list[Any]]:
    groups: dict[Any, list[Any]] = {}
    for line in lines:
        groups.setdefault((line.key.region, line.key.meter, line.key.zone), []).append(line)
    return groups
