"""`waybill bill`: show a bill, open a line of it, issue it, and see what changed since."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cloud_jobs.billing.adjustment import adjustment
from cloud_jobs.billing.bill import Bill
from cloud_jobs.billing.device_records import line_records
from cloud_jobs.billing.document import adjustment_document, bill_document, read_bill, to_json
from cloud_jobs.billing.errors import BillingError
from cloud_jobs.billing.invoice import to_html
from cloud_jobs.billing.lake_reader import bill_from_lake, erased_before
from cloud_jobs.billing.lines import Line
from cloud_jobs.billing.period import Period, stamp
from cloud_jobs.billing.terminal import adjustment_table, bill_table, seq_ranges_table
from cloud_jobs.billing.usage import MAX_SEGMENT
from cloud_jobs.error_messages import cloud_errors_as_messages
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.location import Location
from cloud_jobs.lake.tables import Lake
from cloud_jobs.result_file import writing_result
from runtime import create_durably, replace_durably

app = typer.Typer(
    rich_markup_mode=None, no_args_is_help=True, help="Bills: shown, opened down to the records, issued and adjusted."
)

LakeOption = Annotated[
    str,
    typer.Option("--lake", help="A folder, or s3://BUCKET/PREFIX reached as AWS's variables in the environment say."),
]
AccountOption = Annotated[str, typer.Option("--account", help="The account's id.")]
PeriodOption = Annotated[str, typer.Option("--period", help="2026, 2026-03, 2026-03-05, or FROM/TO (ISO 8601, UTC).")]
AsOfOption = Annotated[
    str | None, typer.Option("--as-of", help="What was known at this moment (ISO 8601); now if not given.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print canonical JSON.")]


def _console() -> Console:
    """A pipe or a file has no width of its own; the tables need this much."""
    return Console(width=None if sys.stdout.isatty() else 140)


@app.command()
@cloud_errors_as_messages("bill")
def show(
    *,
    lake: LakeOption,
    account: AccountOption,
    period: PeriodOption,
    as_of: AsOfOption = None,
    as_json: JsonOption = False,
    html: Annotated[Path | None, typer.Option("--html", help="Write an invoice to print into this file.")] = None,
) -> None:
    """Show what an account owes for a period.

    Example: waybill bill show --lake lake --account acme --period 2026-01-05
    """
    made = _bill(lake, account, period, as_of)
    if html is not None:
        with _file_errors(), writing_result(html) as file:
            file.write(to_html(bill_document(made)))
    if as_json:
        _write(to_json(bill_document(made)))
    else:
        _console().print(bill_table(made))


@app.command("open")
@cloud_errors_as_messages("bill")
def open_line(
    *,
    lake: LakeOption,
    account: AccountOption,
    period: PeriodOption,
    line: Annotated[int, typer.Option("--line", help="The number of the line.")],
    as_of: AsOfOption = None,
    limit: Annotated[int, typer.Option("--limit", min=0, help="The most records to print.")] = 50,
    as_json: JsonOption = False,
) -> None:
    """Open a line down to the ids of its records, and read those records from the lake.

    Example: waybill bill open --lake lake --account acme --period 2026-01-05 --line 1
    """
    made, tables = _bill(lake, account, period, as_of), Lake(Location.of(lake))
    opened = made.line(line)
    records = line_records(tables, opened)
    # as it is now: the records are read as they are now
    device = TenantDevice(opened.key.tenant, opened.key.device)
    before = erased_before(tables, [device]).get(device)
    # also where only the fix before the period is erased, from which its first segment leads
    gone = None if before is None or before <= made.period.start - MAX_SEGMENT else stamp(before)
    if as_json:
        rows = [{name: _plain(value) for name, value in row.items()} for row in records]
        found = {
            "tenant": opened.key.tenant,
            "device": opened.key.device,
            "seq_ranges": opened.seq_ranges.document(),
            "positions_erased_before": gone,
            "records": rows,
        }
        _write(json.dumps(found, ensure_ascii=False, indent=2, sort_keys=True).encode() + b"\n")
        return
    console = _console()
    console.print(seq_ranges_table(opened.key.device, opened.seq_ranges))
    rows = list(islice(records, limit))
    # not as the title of the table, which may be narrow
    console.print(Text(_records_title(opened, len(rows), gone)))
    console.print(_records_table(rows))


@app.command()
@cloud_errors_as_messages("bill")
def issue(
    *,
    lake: LakeOption,
    account: AccountOption,
    period: PeriodOption,
    out: Annotated[Path, typer.Option("--out", help="The folder of issued bills.")],
    as_of: AsOfOption = None,
    provisional: Annotated[bool, typer.Option("--provisional", help="Issue it even if devices are open.")] = False,
) -> None:
    """Write a final bill as JSON and HTML under its invoice number. An issued bill is never written over.

    The period must have ended.

    Example: waybill bill issue --lake lake --account acme --period 2026-01-05 --out issued
    """
    made = _bill(lake, account, period, as_of)
    if made.as_of < made.period.end:
        raise BillingError(
            f"the period {made.period} had not ended at {stamp(made.as_of)}; such a bill is shown, not issued"
        )
    if made.status.value != "final" and not provisional:
        raise BillingError(
            "the bill is provisional: `bill show` says which devices are open or not metered, and which publications"
            " cannot be used; --provisional issues it anyway"
        )
    document = bill_document(made)
    target = out / f"{document['invoice_number']}.json"
    with _file_errors():
        out.mkdir(parents=True, exist_ok=True)
        # two that issue at the same moment cannot both write it
        if not create_durably(target, to_json(document)):
            raise BillingError(f"{target} was issued already; what came later is an adjustment")
        # after the JSON, which is the bill: the page can be made from it again
        replace_durably(target.with_suffix(".html"), to_html(document).encode())
    Console().print(Text(str(target)), soft_wrap=True)


@app.command()
@cloud_errors_as_messages("bill")
def adjust(
    *,
    lake: LakeOption,
    issued: Annotated[Path, typer.Option("--issued", help="The issued bill: the JSON file that `issue` wrote.")],
    as_of: AsOfOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the credits and debits between an issued bill and what is known now. The issued bill stays as it is.

    Example: waybill bill adjust --lake lake --issued issued/NUMBER.json
    """
    with _file_errors():
        before = read_bill(issued.read_bytes())
    made = adjustment(before, bill_from_lake(Lake(Location.of(lake)), before.account.id, before.period, _moment(as_of)))
    if as_json:
        _write(to_json(adjustment_document(made)))
    else:
        _console().print(adjustment_table(made))


@contextmanager
def _file_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BillingError(f"{error.filename}: {error.strerror}") from error


def _bill(lake: str, account: str, period: str, as_of: str | None) -> Bill:
    return bill_from_lake(Lake(Location.of(lake)), account, Period.parse(period), _moment(as_of))


def _moment(text: str | None) -> datetime:
    """A moment that has come: what will be known later, nobody knows yet."""
    now = datetime.now(UTC)
    if text is None:
        return now
    try:
        written = datetime.fromisoformat(text)
        moment = written.replace(tzinfo=UTC) if written.tzinfo is None else written.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise BillingError(f"{text!r} is not a valid moment; write it like 2026-03-05T06:00:00Z") from error
    if moment > now:
        raise BillingError(f"--as-of {stamp(moment)} is in the future; nobody knows yet what will be known then")
    return moment


def _write(content: bytes) -> None:
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()


def _plain(value: object) -> object:
    return stamp(value) if isinstance(value, datetime) else value


def _records_title(line: Line, found: int, erased: str | None) -> str:
    title = f"Records: {found} of {line.seq_ranges.count}"
    return (
        title if erased is None else f"{title}; positions before {erased} are erased, what was metered of them stands"
    )


def _records_table(rows: list[dict[str, object]]) -> Table:
    table = Table()
    for heading in rows[0] if rows else ("epoch", "seq"):
        table.add_column(heading, no_wrap=heading in {"epoch", "seq", "device_time"})
    for row in rows:
        table.add_row(*(Text("" if value is None else str(_plain(value))) for value in row.values()))
    return table
