"""`waybill bill`: the register's commands, and `explain`, which uses several packages."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cloud_jobs.billing.register.commands import app
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.terminal import cloud_errors_as_messages, device_of
from waybill.settings import printable_json

if TYPE_CHECKING:
    from cloud_jobs.explain.issued_line import ExplainedLine


__all__ = ["app"]

NOT_AGREED: Final = 3
"""The exit status when a recomputed value differs or is unknown."""


@cloud_errors_as_messages("bill")
def explain(
    number: Annotated[str, typer.Argument(help="The number of the invoice or note.")],
    line: Annotated[int, typer.Argument(help="The number of the line.", min=1)],
    *,
    lake: Annotated[str, typer.Option(help="A folder, or s3://BUCKET/PREFIX with the AWS variables set.")],
    device: Annotated[
        str | None, typer.Option("--device", metavar="TENANT/DEVICE", help="The device, if the line has several.")
    ] = None,
    hour: Annotated[str | None, typer.Option(help="Also show the records of this hour (2026-03-05T06).")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help="Most hours and records to show.")] = 24,
    access_log: Annotated[
        Path | None,
        typer.Option(envvar="WAYBILL_ACCESS_LOG", help="Access log file. Default: next to the lake."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Recompute a line from its records, fences and prices and compare each hour with the charge.

    Of a fee: the days, and the charges that a percent is of.

    Each access is logged with user and device; without the log entry, nothing is shown.

    Exit status: 0 everything agrees, 3 something differs or is unknown.

    Example: waybill bill explain WB-EU-00000001 3 --lake lake --device acme/eu-0001
    """
    from cloud_jobs.billing.register.tables import Register
    from cloud_jobs.explain.issued_line import explain_line, records_of_hour
    from cloud_jobs.lake.location import Location
    from cloud_jobs.lake.tables import Lake
    from cloud_jobs.maintenance.erasing import log_access

    opened, wanted = Lake(Location.of(lake)), None if device is None else device_of(device)
    asked = None if hour is None else _hour(hour)
    found = explain_line(Register(opened), number, line, wanted)
    key = found.explanation.charge.key
    hours = [one for one in found.explanation.hours if one.hour == asked]
    if asked is not None and not hours:
        raise typer.BadParameter(f"the line charges nothing in the hour {hour}; leave out --hour to list its hours")
    of_device = TenantDevice(key.tenant, key.device)
    what = {"document": number, "line": line, "hour": asked}
    if key.meter is not None:
        # a fee shows no positions
        log_access(opened.location, access_log, "waybill bill explain", of_device, **what)
    records = [row for one in hours for row in records_of_hour(opened, of_device, one, limit)]
    count = sum(one.seq_ranges.count for one in hours)
    _show(found, asked, records, count, limit=limit, as_json=as_json)
    if found.explanation.agrees is not True:
        raise typer.Exit(NOT_AGREED)


def _show(
    found: ExplainedLine,
    asked: datetime | None,
    records: list[dict[str, Any]],
    count: int,
    *,
    limit: int,
    as_json: bool,
) -> None:
    from cloud_jobs.explain.terminal import line_tables, line_values, record_values, records_table
    from cloud_jobs.terminal import screen

    if as_json:
        of_hour = {} if asked is None else {"records": record_values(records), "records_in_all": count}
        values = line_values(found, limit) | of_hour
        sys.stdout.write(printable_json(values, indent=2, sort_keys=True) + "\n")
        return
    console = screen()
    console.print(line_tables(found, limit))
    if asked is not None:
        console.print(records_table(asked, records, count))


def _hour(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise typer.BadParameter(f"{text!r} is not an hour; write it as 2026-03-05T06") from error
    return moment.replace(minute=0, second=0, microsecond=0)


app.command()(explain)
