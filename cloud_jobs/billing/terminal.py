"""Bills for the terminal, as Rich tables."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cloud_jobs.billing.adjustment import Adjustment
from cloud_jobs.billing.bill import Bill
from cloud_jobs.billing.completeness import Certificate
from cloud_jobs.billing.currency import amount_text
from cloud_jobs.billing.lines import LineKey
from cloud_jobs.billing.meters import MEASURE_OF, quantity_text
from cloud_jobs.billing.reference import Account
from cloud_jobs.lake.seq_ranges import SeqRanges
from cloud_jobs.refused_table import refused_table


def bill_table(bill: Bill) -> RenderableType:
    """The bill's lines, its totals by region and overall, and the completeness of each device."""
    table = _lines_table(f"{bill.account.name} · {bill.period} · {bill.status.value}")
    several = _several(bill.account)
    for line in bill.lines:
        _add(
            table,
            line.number,
            line.key,
            _device(line.key, several),
            line.quantity,
            amount_text(line.amount_minor, bill.currency),
        )
    table.add_section()
    for region, amount in bill.totals_by_region.items():
        table.add_row("", region, "", "", "", "", "total", "", amount_text(amount, bill.currency))
    _add_total(table, bill.total_minor, bill.currency)
    parts = [table, certificate_table(bill.certificates, with_tenant=several)]
    return Group(*parts, refused_table(bill.refused)) if bill.refused else Group(*parts)


def adjustment_table(adjustment: Adjustment) -> RenderableType:
    """The credits and debits, signed."""
    table = _lines_table(f"Adjustment for {adjustment.account.name} · service period {adjustment.period}")
    table.add_column("posted as")
    currency = adjustment.account.currency
    several = _several(adjustment.account)
    for line in adjustment.lines:
        _add(
            table,
            line.number,
            line.key,
            _device(line.key, several),
            line.quantity,
            amount_text(line.amount_minor, currency),
            line.direction.value,
        )
    _add_total(table, adjustment.total_minor, currency)
    return table


def certificate_table(certificates: Iterable[Certificate], *, with_tenant: bool = False) -> Table:
    """For each device whether every record is accounted for, and how many are not metered, of no day, or erased."""
    table = Table(title="Completeness", title_justify="left")
    for heading in ("device", "state"):
        table.add_column(heading, no_wrap=True)
    for heading in ("received", "declared lost", "missing", "not metered", "far off", "erased"):
        table.add_column(heading, justify="right")
    for certificate in certificates:
        table.add_row(
            Text(_device(certificate, with_tenant)),
            certificate.state.value,
            str(certificate.received),
            str(certificate.declared_lost.count),
            str(certificate.missing.count),
            str(certificate.not_metered),
            str(certificate.far_off),
            str(certificate.erased),
        )
    return table


def seq_ranges_table(device: str, seq_ranges: SeqRanges) -> Table:
    """The ids of the records of one line: device, epoch, ranges of sequence numbers."""
    table = Table(title=f"Seq ranges: {seq_ranges.count} records", title_justify="left")
    for heading in ("device", "epoch"):
        table.add_column(heading, no_wrap=True)
    for heading in ("first", "last", "records"):
        table.add_column(heading, justify="right")
    for epoch, seqs in seq_ranges:
        for first, last in seqs.ranges:
            table.add_row(Text(device), str(epoch), str(first), str(last), str(last - first + 1))
    return table


def _several(account: Account) -> bool:
    """Whether devices have to be shown with their tenants, as two of them may have one id."""
    return len({vehicle.tenant for vehicle in account.vehicles}) > 1


def _device(of: LineKey | Certificate, with_tenant: bool) -> str:
    return f"{of.tenant}/{of.device}" if with_tenant else of.device


def _lines_table(title: str) -> Table:
    table = Table(title=Text(title), title_justify="left")
    table.add_column("line", justify="right")
    for heading in ("region", "device", "meter", "zone"):
        table.add_column(heading)
    for heading in ("quantity", "unit", "price", "amount"):
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _add(table: Table, number: int, key: LineKey, device: str, quantity: int, amount: str, *more: str) -> None:  # noqa: PLR0917
    table.add_row(
        str(number),
        # as Text: Rich would read brackets in a name as markup
        Text(key.region),
        Text(device),
        key.meter.value,
        Text(key.zone or "outside"),
        quantity_text(key.meter, quantity),
        MEASURE_OF[key.meter].unit,
        f"{key.unit_amount:f}",
        amount,
        *more,
    )


def _add_total(table: Table, amount_minor: int, currency: str) -> None:
    table.add_section()
    amount = Text(amount_text(amount_minor, currency), style="bold")
    table.add_row("", "", "", "", "", "", Text("total", style="bold"), currency, amount)
